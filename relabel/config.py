"""What `retold relabel` is asked."""

from dataclasses import dataclass, field

from retold.dataset.expression import parse_condition
from retold.dataset.paths import DatasetPath
from retold.relabel.goal_reward import check_goal_reward, distance_of
from retold.relabel.options import RelabelOptions
from retold.relabel.shard_task import FILTER_COLUMNS
from retold.relabel.strategies import find_strategy
from retold.schemas.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class RelabelConfig:
    """What `retold relabel` is asked."""

    source: DatasetPath
    """Dataset whose episodes are retold. It is never changed."""
    target: DatasetPath
    """Dataset of variants to append to; made if there is none."""
    strategy: str = "some"
    """How goals are chosen: some, all, all-or-nothing, rare, rare-in-episode, chain, final, future,
    episode, or a function of your own as module:function."""
    variants: int = 4
    """Variants of each episode; those equal to the original or to one another are dropped."""
    seed: int = 0
    """Seed of the draws. Another seed or strategy makes a new generation beside the old one."""
    length_weights: tuple[float, ...] = field(default=())
    """Chance of instructions of one goal, in any scale; given again, of two goals, and so on. None
    keeps each episode's own length."""
    goal_limit: int | None = None
    """Most variants of an episode in which one goal stands that its original lacks."""
    goal_reward: str | None = None
    """For goal-conditioned data: what recomputes rewards. within:DISTANCE, penalty:DISTANCE,
    negative-distance, exp-distance, environment, or a function as module:function."""
    goal_terminates: bool = False
    """For goal-conditioned data with a distance: end a variant where its goal is reached."""
    filter: str | None = None
    """Only retell episodes that meet this condition on their table rows, e.g. 'episode_return == 0
    and events >= 3'."""
    commit_every: int | None = None
    """Source shards of one commit; none makes one commit of the whole run."""
    workers: int = 2
    """Dask worker processes on this machine; 0 retells in this process, without Dask."""
    scheduler: str | None = None
    """Address of a running Dask scheduler, used instead of local workers."""

    def __post_init__(self) -> None:
        for name, minimum in (
            *(("variants", 1), ("seed", 0), ("workers", 0)),
            *(("goal_limit", 1), ("commit_every", 1)),
        ):
            value = getattr(self, name)
            if value is not None and value < minimum:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}, but must be at least {minimum}.")
        if self.length_weights and (
            min(self.length_weights) < 0 or not 0 < sum(self.length_weights) < float("inf")
        ):
            raise UsageError(
                f"--length-weights is {self.length_weights}. Give numbers of at least 0, not all "
                f"of them 0."
            )
        if self.source.resolve() == self.target.resolve():
            raise UsageError(
                f"{self.target}: source and target are the same dataset. Give another target."
            )
        find_strategy(self.strategy)
        if self.goal_reward is not None:
            check_goal_reward(self.goal_reward)
        if self.goal_terminates and distance_of(self.goal_reward or "") is None:
            raise UsageError(
                "--goal-terminates needs a reward that says how near is reached. Give, for "
                "example, --goal-reward within:0.45."
            )
        if self.filter is not None:
            parse_condition(self.filter, FILTER_COLUMNS)

    @property
    def options(self) -> RelabelOptions:
        """What decides what a variant says."""
        return RelabelOptions(
            strategy=self.strategy,
            variants=self.variants,
            seed=self.seed,
            length_weights=self.length_weights,
            goal_limit=self.goal_limit,
            goal_reward=self.goal_reward,
            goal_terminates=self.goal_terminates,
        )

"""The one rollout loop, which collecting and evaluating share.

Environments are reset by hand, each with its episode's own seed, so that the true last observation is
kept and every episode can be replayed. All draws come from the episode's own streams: the episodes do
not depend on how many environments run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.policy.acting import Actor
from retold.policy.action_draws import draw_action, random_action
from retold.policy.actions import make_action_codec
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Leaves
from retold.schemas.errors import EnvironmentFailure
from retold.schemas.exploration import ExplorationSchedule
from retold.schemas.identity import random_stream
from retold.schemas.spaces import flatten_value


@dataclass(frozen=True)
class EpisodeAssignment:
    """An episode to play."""

    index: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class FinishedEpisode:
    """A played episode, before it has an identity on disk. Arrays as in `Episode`."""

    assignment: EpisodeAssignment
    policy_id: str
    policy_update: int | None
    instruction: tuple[int, ...]
    initial_goals: tuple[int, ...]
    completed: tuple[int, ...]
    success: bool | None
    observation: Leaves
    action: Leaves
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    environment_terminated: NDArray[np.bool_]
    reset: NDArray[np.bool_]
    event_step: NDArray[np.uint32]
    event_goal: NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class ActionChoice:
    """How probabilities become actions."""

    run_seed: int
    stage: str
    """Names the episodes' random streams: `collect` or `evaluate`."""
    is_greedy: bool
    exploration: ExplorationSchedule


class _Slot:
    """One environment and the episode in it."""

    def __init__(
        self, environment: gymnasium.Env[Any, Any], schema: DatasetSchema, number: int
    ) -> None:
        self.number = number
        self._environment = environment
        self._schema = schema
        self._codec = make_action_codec(schema)
        self.actor: Actor

    def begin(self, assignment: EpisodeAssignment, actor: Actor, choice: ActionChoice) -> None:
        """Reset the environment to the episode's seed."""
        self.assignment, self.actor = assignment, actor
        self._choice = choice
        index = assignment.index
        self._act_rng = random_stream(choice.run_seed, f"{choice.stage} act", index)
        self._explore_rng = random_stream(choice.run_seed, f"{choice.stage} explore", index)
        observation, facts = self._call(lambda: self._environment.reset(seed=assignment.seed))
        self.observations = [self._flatten(observation)]
        self._instruction = tuple(facts["instruction"])
        self._initial_goals = tuple(facts["initial_goals"])
        self._transitions: list[tuple[Leaves, float, bool, bool, dict[str, Any]]] = []
        self.progress = 0
        self._completed: list[int] = []
        actor.begin(self.number, self._instruction)

    def choose(self, numbers: NDArray[np.float64] | None) -> Any:
        """The next action, out of what the actor says of it."""
        if numbers is None:
            return random_action(self._codec, self._act_rng)
        step = len(self._transitions)
        epsilon = self._choice.exploration.epsilon(step, self.assignment.index)
        if epsilon > 0 and self._explore_rng.random() < epsilon:
            return random_action(self._codec, self._explore_rng)
        return draw_action(self._codec, numbers, self._act_rng, is_greedy=self._choice.is_greedy)

    def play(self, value: Any) -> bool:
        """One transition; whether the episode is over."""
        observation, reward, terminated, truncated, facts = self._call(
            lambda: self._environment.step(value)
        )
        if not np.isfinite(reward) or (terminated and truncated):
            raise self._failure(
                f"reward {reward}, terminated {terminated} and truncated {truncated}; a reward is "
                f"finite and at most one flag is set"
            )
        leaves = flatten_value(self._schema.action_space, value, "action")
        step = len(self._transitions)
        self._transitions.append((leaves, float(reward), bool(terminated), bool(truncated), facts))
        self.observations.append(self._flatten(observation))
        if self._instruction and reward:
            self.progress += 1
            self._completed.append(step)
        self.actor.record(self.number, leaves, float(reward), bool(facts["reset"]))
        return bool(terminated or truncated)

    def finish(self) -> FinishedEpisode:
        """The episode with its arrays stacked."""
        actions, rewards, terminated, truncated, facts = zip(*self._transitions, strict=True)
        events = [(t, goal) for t, fact in enumerate(facts) for goal in fact["events"]]
        table = np.array(events, np.uint32).reshape(-1, 2)
        return FinishedEpisode(
            assignment=self.assignment,
            policy_id=self.actor.policy_id,
            policy_update=self.actor.update,
            instruction=self._instruction,
            initial_goals=self._initial_goals,
            completed=tuple(self._completed),
            success=facts[-1]["success"],
            observation=_stack(self.observations),
            action=_stack(actions),
            reward=np.array(rewards, np.float32),
            terminated=np.array(terminated, np.bool_),
            truncated=np.array(truncated, np.bool_),
            environment_terminated=np.array([f["environment_terminated"] for f in facts], np.bool_),
            reset=np.array([fact["reset"] for fact in facts], np.bool_),
            event_step=np.ascontiguousarray(table[:, 0]),
            event_goal=np.ascontiguousarray(table[:, 1]),
        )

    def _flatten(self, observation: Any) -> Leaves:
        leaves = flatten_value(self._schema.observation_space, observation, "observation")
        for leaf in self._schema.observation_leaves:
            if not leaf.is_ragged and leaves[leaf.path].shape != leaf.shape:
                shape = leaves[leaf.path].shape
                raise self._failure(f"{leaf.path!r} of shape {shape} instead of {leaf.shape}")
        return leaves

    def _call(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except EnvironmentFailure:
            raise
        except Exception as error:
            raise self._failure(f"the error {type(error).__name__}: {error}") from error

    def _failure(self, what: str) -> EnvironmentFailure:
        task = self._schema.tasks[0]
        step = len(getattr(self, "_transitions", ()))
        return EnvironmentFailure(
            f"Task {task.name}, seed {self.assignment.seed}, step {step}: the environment gave "
            f"{what}. Episodes that were finished before are kept; correct the task and run again."
        )


def roll_out(
    environments: Sequence[gymnasium.Env[Any, Any]],
    schema: DatasetSchema,
    assignments: Iterator[EpisodeAssignment],
    choice: ActionChoice,
    newest_actor: Callable[[], Actor],
) -> Iterator[FinishedEpisode]:
    """Play every assigned episode, in whatever order they finish.

    Args:
        environments: one for each episode in flight.
        schema: the task's spaces.
        assignments: what to play.
        choice: how to choose actions.
        newest_actor: asked before each episode; an episode in flight keeps the actor it began with.

    Raises:
        EnvironmentFailure: an environment raised or broke its spaces.
    """
    idle = [_Slot(environment, schema, i) for i, environment in enumerate(environments)]
    running: list[_Slot] = []
    while True:
        while idle and (assignment := next(assignments, None)) is not None:
            slot = idle.pop()
            slot.begin(assignment, newest_actor(), choice)
            running.append(slot)
        if not running:
            return
        for slot, chances in _ask(running):
            if slot.play(slot.choose(chances)):
                running.remove(slot)
                idle.append(slot)
                yield slot.finish()


def _ask(running: Sequence[_Slot]) -> list[tuple[_Slot, NDArray[np.float64] | None]]:
    """Probabilities for every running slot, one batch for each actor in use."""
    answers: list[tuple[_Slot, NDArray[np.float64] | None]] = []
    for actor in {id(slot.actor): slot.actor for slot in running}.values():
        slots = [slot for slot in running if slot.actor is actor]
        chances = actor.act(
            [slot.number for slot in slots],
            [slot.observations[-1] for slot in slots],
            [slot.progress for slot in slots],
        )
        rows = [None] * len(slots) if chances is None else list(chances)
        answers.extend(zip(slots, rows, strict=True))
    return answers


def _stack(rows: Sequence[Leaves]) -> Leaves:
    return {path: np.stack([row[path] for row in rows]) for path in rows[0]}

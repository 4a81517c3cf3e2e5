"""`retold evaluate`: score a policy on worlds that no training ever saw."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import PolicyError, UsageError
from retold.schemas.exploration import NO_EXPLORATION
from retold.schemas.identity import world_seed
from retold.tasks.registry import make_task, task_schema

if TYPE_CHECKING:
    from retold.policy.rollout import FinishedEpisode


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What `retold evaluate` is asked."""

    policy: Path
    """A policy snapshot, a run (its newest policy), or the word random."""
    task: str | None = None
    """Task to play; none means the policy's own."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Names the evaluation worlds, which no training run can draw."""
    task_args: Mapping[str, Any] | None = None
    """Arguments of the task, as a JSON object; none means the policy's own."""
    action: Literal["greedy", "sample"] = "greedy"
    """Take the likeliest action, or draw one."""
    environments: int = 16
    """Episodes in flight at once."""
    target_return: float | None = None
    """Return that a policy of objective dt is asked for; none means what it keeps from its data."""

    def __post_init__(self) -> None:
        for name in ("episodes", "environments"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}, but must be at least 1.")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}, but must be at least 0.")


@dataclass(frozen=True, kw_only=True)
class EvaluateResult:
    """A policy's score."""

    task: str
    policy: str
    """Id of the snapshot."""
    update: int | None
    episodes: int
    success: float | None
    """Share of episodes whose instruction was completed, or the task's own verdict."""
    mean_return: float
    mean_length: float
    goals_completed: float
    """Mean per episode."""
    goals_asked: float
    """Mean per episode."""
    attempts: tuple[Mapping[str, int | float], ...]
    """Of each attempt that a reset ended, in order: in how many episodes, and its mean return."""
    history: tuple[Mapping[str, int | float], ...] = ()
    """Of a policy of `context = history`, each episode in order since its memory was empty: in how
    many environments, and its mean return."""
    goals: tuple[Mapping[str, str | int], ...]
    """How often each goal was asked and completed, most asked first."""
    action: str
    """How actions were chosen."""
    seed: int
    """It names the evaluation worlds."""
    task_args: Mapping[str, Any]


def evaluate(config: EvaluateConfig) -> EvaluateResult:
    """Play the evaluation episodes and score them.

    Raises:
        PolicyError: there is no policy.
        UsageError: the task's spaces are not the policy's.
    """
    from retold.policy.acting import Actor, PolicyActor, RandomActor
    from retold.policy.registry import resolve_policy
    from retold.policy.rollout import ActionChoice, EpisodeAssignment, roll_out
    from retold.policy.snapshot import load_snapshot

    choice = resolve_policy(str(config.policy))
    path = choice.newest()
    if path is None and choice.registry is not None:
        raise PolicyError(
            f"{config.policy}: no policy has been published yet. Train one with "
            f"`retold train {config.policy} --data DATASET`."
        )
    slots = min(config.environments, config.episodes)
    actor: Actor = RandomActor()
    known: DatasetSchema | None = None
    if path is None and config.target_return is not None:
        raise UsageError("Random actions ask for no return. Leave --target-return out.")
    if path is not None:
        policy, description = load_snapshot(path)
        actor = PolicyActor(
            policy,
            slots,
            description.policy_id,
            description.update,
            target_return=config.target_return,
        )
        known = description.schema
    schema = _choose_task(config, known)
    task = schema.tasks[0]
    episodes = list(
        roll_out(
            [make_task(task.name, task.kwargs) for _ in range(slots)],
            schema,
            iter(
                [
                    EpisodeAssignment(i, world_seed(config.seed, i, evaluation=True))
                    for i in range(config.episodes)
                ]
            ),
            ActionChoice(
                run_seed=config.seed,
                stage="evaluate",
                is_greedy=config.action == "greedy",
                exploration=NO_EXPLORATION,
            ),
            lambda: actor,
        )
    )
    score = _score(config, schema, actor.policy_id, actor.update, episodes)
    if path is not None and policy.architecture.context == "history":
        score = dataclasses.replace(score, history=_score_history(episodes))
    return score


def _choose_task(config: EvaluateConfig, known: DatasetSchema | None) -> DatasetSchema:
    if config.task is None:
        if known is None:
            raise UsageError("Random actions have no task of their own. Name a TASK.")
        name, given = known.tasks[0].name, config.task_args or known.tasks[0].kwargs
    else:
        is_own = known is not None and known.tasks[0].name == config.task
        own = known.tasks[0].kwargs if known is not None and is_own else {}
        name, given = config.task, own if config.task_args is None else config.task_args
    schema = task_schema(name, given)
    if known is not None and not known.covers(schema):
        raise UsageError(
            f"{config.policy}: the policy was made for {known.tasks[0].name} "
            f"{dict(known.tasks[0].kwargs)}; {name} {dict(given)} has other spaces or goals, or "
            f"longer instructions. "
            f"Leave TASK and --task-args out to evaluate on its own task."
        )
    return schema


def _score(
    config: EvaluateConfig,
    schema: DatasetSchema,
    policy_id: str,
    update: int | None,
    episodes: "list[FinishedEpisode]",
) -> EvaluateResult:
    vocabulary = schema.tasks[0].vocabulary
    goals: dict[str, dict[str, int]] = {}
    for episode in episodes:
        for number, goal in enumerate(episode.instruction):
            assert vocabulary is not None
            row = goals.setdefault(vocabulary.describe(goal), {"asked": 0, "completed": 0})
            row["asked"] += 1
            row["completed"] += number < len(episode.completed)
    verdicts = [episode.success for episode in episodes if episode.success is not None]
    return EvaluateResult(
        task=schema.tasks[0].name,
        policy=policy_id,
        update=update,
        episodes=len(episodes),
        success=float(np.mean(verdicts)) if verdicts else None,
        mean_return=float(np.mean([e.reward.sum(dtype=np.float64) for e in episodes])),
        mean_length=float(np.mean([len(e.reward) for e in episodes])),
        goals_completed=float(np.mean([len(e.completed) for e in episodes])),
        goals_asked=float(np.mean([len(e.instruction) for e in episodes])),
        attempts=_score_attempts(episodes),
        goals=tuple(
            {"goal": goal, **counts}
            for goal, counts in sorted(goals.items(), key=lambda item: -item[1]["asked"])
        ),
        action=config.action,
        seed=config.seed,
        task_args=schema.tasks[0].kwargs,
    )


def _score_history(
    episodes: "list[FinishedEpisode]",
) -> tuple[Mapping[str, int | float], ...]:
    """By the number of episodes that the policy remembered."""
    rows = []
    for number in range(1 + max(episode.episodes_before for episode in episodes)):
        returns = [
            episode.reward.sum(dtype=np.float64)
            for episode in episodes
            if episode.episodes_before == number
        ]
        row = {"episode": number + 1, "environments": len(returns)}
        rows.append({**row, "mean_return": float(np.mean(returns))})
    return tuple(rows)


def _score_attempts(
    episodes: "list[FinishedEpisode]",
) -> tuple[Mapping[str, int | float], ...]:
    """What an episode's end cuts is left out: it is no whole attempt, or not always."""
    returns = [_attempt_returns(episode) for episode in episodes]
    rows = []
    for number in range(max(map(len, returns))):
        those = [parts[number] for parts in returns if len(parts) > number]
        row = {"attempt": number + 1, "episodes": len(those), "mean_return": float(np.mean(those))}
        rows.append(row)
    return tuple(rows)


def _attempt_returns(episode: "FinishedEpisode") -> list[float]:
    (ends,) = np.nonzero(episode.reset)
    parts = np.split(episode.reward.astype(np.float64), ends + 1)
    return [float(part.sum()) for part in parts[:-1]]

"""The one rollout loop, which collecting and evaluating share.

Environments are reset by hand, each with its episode's own seed, so that the true last observation is
kept and every episode can be replayed. All draws come from the episode's own streams: the episodes do
not depend on how many environments run. An environment that fails is replaced where there is a
replacement, and its episode dropped: nothing of it is returned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.policy.acting import Actor
from retold.policy.action_draws import draw_action, random_action, random_blocks
from retold.policy.actions import make_action_codec
from retold.policy.observation_columns import ArrayColumn, ObservationColumns, WrongValue
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Leaves
from retold.schemas.errors import EnvironmentFailure
from retold.schemas.exploration import ExplorationSchedule
from retold.schemas.identity import random_stream
from retold.schemas.spaces import find_invalid

_NUMBERS = (float, int, np.generic)


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
    episodes_before: int = 0
    """Episodes that the actor had played in this slot before."""


@dataclass(frozen=True)
class DroppedEpisode:
    """An episode whose environment failed."""

    assignment: EpisodeAssignment
    reason: str


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
        self.environment = environment
        self._schema = schema
        self._codec = make_action_codec(schema)
        self._observations = ObservationColumns(schema.observation_space)
        codec = self._codec
        self._actions = ArrayColumn(codec.path, codec.dtype, codec.shape)
        self.actor: Actor
        self._last_actor: Actor | None = None
        self._episodes_before = 0

    def begin(self, assignment: EpisodeAssignment, actor: Actor, choice: ActionChoice) -> None:
        """Reset the environment to the episode's seed."""
        self._episodes_before = self._episodes_before + 1 if self._last_actor is actor else 0
        self.assignment, self.actor, self._last_actor = assignment, actor, actor
        self._choice = choice
        index = assignment.index
        self._act_rng = random_stream(choice.run_seed, f"{choice.stage} act", index)
        self._random_blocks = random_blocks(self._codec, self._act_rng)
        self._explore_rng = random_stream(choice.run_seed, f"{choice.stage} explore", index)
        self._epsilon_scale = self._explore_rng.random() if choice.exploration.is_scaled else 1.0
        self._observations.clear()
        self._actions.clear()
        self._length = 0
        self._outcomes: list[tuple[float, bool, bool, bool, bool]] = []
        self._events: list[tuple[int, int]] = []
        self._success: bool | None = None
        try:
            observation, facts = self.environment.reset(seed=assignment.seed)
            self._observations.append(observation)
            self._instruction = tuple(facts["instruction"])
            self._initial_goals = tuple(facts["initial_goals"])
        except Exception as error:
            raise self._failure(error) from error
        self.progress = 0
        self._completed: list[int] = []
        actor.begin(self.number, self._instruction)

    def choose(self, numbers: NDArray[np.float64] | None) -> Any:
        """The next action, out of what the actor says of it."""
        if numbers is None:
            return random_action(self._codec, self._act_rng)
        step = self._length
        epsilon = self._choice.exploration.epsilon(step, self.assignment.index)
        epsilon *= self._epsilon_scale
        is_greedy = self._choice.is_greedy
        noise = None
        if epsilon > 0:
            if self._codec.kind == "amounts":
                noise = epsilon * self._explore_rng.standard_normal(self._codec.size)
            elif self._explore_rng.random() < epsilon:
                return random_action(self._codec, self._explore_rng)
        return draw_action(self._codec, numbers, self._act_rng, is_greedy=is_greedy, noise=noise)

    @property
    def observation(self) -> Leaves:
        """The newest one."""
        return self._observations.last()

    def play_on(self) -> bool:
        """A block of random transitions; whether the episode is over."""
        block = next(self._random_blocks)
        self._actions.extend(block)
        return any(map(self._step, block))

    def play(self, value: Any) -> bool:
        """One transition; whether the episode is over."""
        self._actions.append(value)
        is_over = self._step(value)
        if not self.actor.forgets:
            reward, *_, reset = self._outcomes[-1]
            leaves = {self._actions.path: self._actions.last}
            self.actor.record(self.number, leaves, reward, reset)
        return is_over

    def _step(self, value: Any) -> bool:
        """Keep what comes of an action; whether the episode is over."""
        try:
            observation, reward, terminated, truncated, facts = self.environment.step(value)
            self._observations.append(observation)
            if type(reward) is not float or not isfinite(reward) or (terminated and truncated):
                reward = _check_outcome(reward, terminated, truncated)
            terminated, truncated = bool(terminated), bool(truncated)
            reset = bool(facts["reset"])
            has_ended = bool(facts["environment_terminated"])
            for goal in facts["events"]:
                self._events.append((self._length, goal))
            self._success = facts["success"]
        except Exception as error:
            raise self._failure(error) from error
        self._outcomes.append((reward, terminated, truncated, has_ended, reset))
        if self._instruction and reward:
            self.progress += 1
            self._completed.append(self._length)
        self._length += 1
        return terminated or truncated

    def finish(self) -> FinishedEpisode:
        """The episode with its arrays stacked, every row inside its space."""
        try:
            finished = self._stack()
            _check_rows(finished, self._schema)
        except Exception as error:
            raise self._failure(error) from error
        return finished

    def _stack(self) -> FinishedEpisode:
        reward, terminated, truncated, has_ended, reset = zip(*self._outcomes, strict=True)
        table = np.array(self._events, np.uint32).reshape(-1, 2)
        self._actions.cut(self._length)  # the last block was longer
        return FinishedEpisode(
            assignment=self.assignment,
            policy_id=self.actor.policy_id,
            policy_update=self.actor.update,
            instruction=self._instruction,
            initial_goals=self._initial_goals,
            completed=tuple(self._completed),
            success=self._success,
            observation=self._observations.stacked(),
            action={self._actions.path: self._actions.stacked()},
            reward=np.array(reward, np.float32),
            terminated=np.array(terminated, np.bool_),
            truncated=np.array(truncated, np.bool_),
            environment_terminated=np.array(has_ended, np.bool_),
            reset=np.array(reset, np.bool_),
            event_step=np.ascontiguousarray(table[:, 0]),
            event_goal=np.ascontiguousarray(table[:, 1]),
            episodes_before=self._episodes_before,
        )

    def _failure(self, error: Exception) -> EnvironmentFailure:
        """An error of ours says what the environment gave; any other is the environment's."""
        is_ours = isinstance(error, WrongValue)
        what = str(error) if is_ours else f"the error {type(error).__name__}: {error}"
        return EnvironmentFailure(
            f"Task {self._schema.tasks[0].name}, seed {self.assignment.seed}, step "
            f"{self._length}: the environment gave {what}. Episodes that were finished "
            f"before are kept; correct the task and run again."
        )


def _check_outcome(reward: Any, terminated: Any, truncated: Any) -> float:
    is_number = isinstance(reward, _NUMBERS)
    if not is_number or not isfinite(reward) or (terminated and truncated):
        raise WrongValue(
            f"reward {reward}, terminated {terminated} and truncated {truncated}; a reward is one "
            f"finite number and at most one flag is set"
        )
    return float(reward)


def _check_rows(finished: FinishedEpisode, schema: DatasetSchema) -> None:
    for leaf in schema.observation_leaves:
        if not leaf.is_ragged and (fault := find_invalid(leaf, finished.observation[leaf.path])):
            raise WrongValue(f"observations of which {fault}")
    goals = finished.event_goal
    vocabulary = schema.tasks[0].vocabulary
    size = 0 if vocabulary is None else vocabulary.size
    if len(goals) and int(goals.max()) >= size:
        raise WrongValue(f"goal event {int(goals.max())}, but the vocabulary has {size} goals")
    key = finished.event_step.astype(np.uint64) << np.uint64(32) | goals
    if (key[1:] <= key[:-1]).any():
        raise WrongValue("goal events that are not sorted, or one twice")


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
    for episode in roll_out_or_drop(environments, schema, assignments, choice, newest_actor, None):
        assert isinstance(episode, FinishedEpisode)
        yield episode


def roll_out_or_drop(
    environments: Sequence[gymnasium.Env[Any, Any]],
    schema: DatasetSchema,
    assignments: Iterator[EpisodeAssignment],
    choice: ActionChoice,
    newest_actor: Callable[[], Actor],
    replace: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] | None,
) -> Iterator[FinishedEpisode | DroppedEpisode]:
    """As `roll_out`; where an environment fails, its episode is dropped and the others go on.

    Args:
        environments: as there, and so are the arguments up to the last.
        schema: as there.
        assignments: as there.
        choice: as there.
        newest_actor: as there.
        replace: gives a new environment for one that failed; None: a failure is raised.
    """
    idle = [_Slot(environment, schema, i) for i, environment in enumerate(environments)]
    running: list[_Slot] = []

    def drop(slot: _Slot, failure: EnvironmentFailure) -> DroppedEpisode:
        if replace is None:
            raise failure
        slot.environment = replace(slot.environment)
        idle.append(slot)
        return DroppedEpisode(slot.assignment, str(failure))

    while True:
        # Where nobody is asked about actions, episodes in turn are as good, and nearer to the cache.
        while (
            idle
            and not (running and running[0].actor.forgets)
            and (assignment := next(assignments, None)) is not None
        ):
            slot = idle.pop()
            try:
                slot.begin(assignment, newest_actor(), choice)
            except EnvironmentFailure as failure:
                yield drop(slot, failure)
            else:
                running.append(slot)
        if not running:
            return
        for slot, numbers in _ask(running):
            try:
                if not (slot.play_on() if slot.actor.forgets else slot.play(slot.choose(numbers))):
                    continue
                finished = slot.finish()
            except EnvironmentFailure as failure:
                running.remove(slot)
                yield drop(slot, failure)
            else:
                running.remove(slot)
                idle.append(slot)
                yield finished


def _ask(running: Sequence[_Slot]) -> list[tuple[_Slot, NDArray[np.float64] | None]]:
    """Probabilities for every running slot, one batch for each actor in use."""
    answers: list[tuple[_Slot, NDArray[np.float64] | None]] = []
    for actor in {id(slot.actor): slot.actor for slot in running}.values():
        slots = [slot for slot in running if slot.actor is actor]
        if actor.forgets:
            answers.extend((slot, None) for slot in slots)
            continue
        chances = actor.act(
            [slot.number for slot in slots],
            [slot.observation for slot in slots],
            [slot.progress for slot in slots],
        )
        rows = [None] * len(slots) if chances is None else list(chances)
        answers.extend(zip(slots, rows, strict=True))
    return answers

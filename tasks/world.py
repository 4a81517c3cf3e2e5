"""What a world with goals offers the instruction wrapper."""

from abc import abstractmethod
from typing import Any

import gymnasium
import numpy as np

from retold.schemas.vocabulary import GoalVocabulary


class World(gymnasium.Env[Any, Any]):
    """An environment without a reward of its own, which reports the goals that are met.

    `reset` returns `{"initial_goals": …}` beside the observation, `step` `{"events": …}`: sorted
    goal ids, commanded or not; `"reset"` too where attempts end. `terminated` means that the world
    ended.
    """

    vocabulary: GoalVocabulary
    world_seed: int
    """What the last reset made the world from."""

    @abstractmethod
    def draw_instruction(self, rng: np.random.Generator) -> tuple[int, ...]:
        """An instruction for the world as it was reset."""

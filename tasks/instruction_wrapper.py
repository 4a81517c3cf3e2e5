"""Instructions over a world that reports goal events: reward, and the end on completion."""

from typing import Any

import gymnasium

from retold.schemas.identity import random_stream
from retold.schemas.instruction import advance
from retold.schemas.vocabulary import GoalVocabulary
from retold.tasks.world import World


class InstructionWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Asks a world for goals in order, and rewards each by the instruction reward function.

    The instruction is drawn from a stream of its own, so that one seed makes one world whatever
    is asked in it. Observations never hold the instruction.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world
        self._instruction: tuple[int, ...] = ()
        self._progress = 0

    @property
    def vocabulary(self) -> GoalVocabulary:
        """The world's goals."""
        return self._world.vocabulary

    @property
    def next_goal(self) -> int:
        """The goal that is asked for now."""
        return self._instruction[self._progress]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation of the world of `seed`.

        Args:
            seed: names the world and, unless given, its instruction. Drawn afresh if None.
            options: `{"instruction": (goal id, …)}` asks for that instruction.
        """
        observation, facts = self._world.reset(seed=seed)
        given = (options or {}).get("instruction")
        if given is None:
            rng = random_stream(self._world.world_seed, "instruction", "")
            given = self._world.draw_instruction(rng)
        self._instruction = tuple(int(goal) for goal in given)
        self._progress = 0
        return observation, {
            "instruction": self._instruction,
            "initial_goals": facts["initial_goals"],
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One transition; the info holds `events`, `environment_terminated`, `reset`, `success`."""
        observation, _, ended, cut, facts = self._world.step(action)
        progress = advance(self._instruction, self._progress, facts["events"])
        reward = float(progress - self._progress)
        self._progress = progress
        is_complete = 0 < len(self._instruction) == progress
        terminated = bool(ended) or is_complete
        return (
            observation,
            reward,
            terminated,
            bool(cut) and not terminated,
            {
                "events": facts["events"],
                "environment_terminated": bool(ended),
                "reset": bool(facts.get("reset", False)),
                "success": is_complete,
            },
        )

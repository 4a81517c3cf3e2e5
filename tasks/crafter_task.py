"""Crafter's declaration, which does not import its simulator."""

from typing import Any

import gymnasium

from retold.tasks.crafter_goals import VOCABULARY
from retold.tasks.definition import Argument, Arguments, Task


def _make(arguments: Arguments) -> gymnasium.Env[Any, Any]:
    from retold.tasks.crafter import Crafter

    return Crafter(**arguments)


CRAFTER = Task(
    name="crafter",
    sentence="Survive in a new world and do what the instruction names, in order.",
    arguments={
        "observation": Argument(
            "symbols", choices=("symbols", "pixels"), help="What is seen; pixels are 64x64x3."
        ),
        "preset": Argument(
            "easy",
            choices=("easy", "full", "tech-tree", "mixed"),
            help="What instructions ask for; mixed: the tech tree a third of the time, else full.",
        ),
        "goals": Argument(3, minimum=1, help="Most goals of an instruction."),
        "limit": Argument(500, minimum=1, help="Steps after which an episode is cut."),
    },
    limit_is="truncation",
    horizon=lambda arguments: int(arguments["limit"]),
    make=_make,
    vocabulary=lambda arguments: VOCABULARY,
    most_goals=lambda arguments: int(arguments["goals"]),
    packages=("crafter", "opensimplex"),
)

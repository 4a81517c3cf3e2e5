"""Crafter's goal vocabulary, and which instructions each preset asks for."""

import numpy as np

from retold.schemas.vocabulary import GoalFamily, GoalVocabulary

GRID = tuple(str(meters) for meters in range(0, 61, 5))
"""Coordinates that `travel` goals name."""

VOCABULARY = GoalVocabulary(
    (
        GoalFamily(
            "occurrence",
            (("collect",), ("coal", "diamond", "drink", "iron", "sapling", "stone", "wood")),
        ),
        GoalFamily("occurrence", (("defeat",), ("skeleton", "zombie"))),
        GoalFamily("occurrence", (("eat",), ("cow", "plant"))),
        GoalFamily("occurrence", (("make",), ("wood", "stone", "iron"), ("pickaxe", "sword"))),
        GoalFamily("occurrence", (("place",), ("furnace", "plant", "stone", "table"))),
        GoalFamily("occurrence", (("wake",), ("up",))),
        GoalFamily("state", (("travel",), GRID, GRID)),
    )
)

ACHIEVEMENTS = {
    "_".join(words): goal for goal, words in enumerate(VOCABULARY.goals) if words[0] != "travel"
}
"""Goal id by the package's name of the achievement."""

_FIRST_TRAVEL = len(ACHIEVEMENTS)
_REACH = 2  # cells, Euclidean

_EASY = {
    "collect_sapling": 0.25,
    "collect_wood": 0.25,
    "place_plant": 0.15,
    "collect_drink": 0.1,
    "eat_cow": 0.05,
    "place_table": 0.1,
    "make_wood_pickaxe": 0.05,
    "make_wood_sword": 0.05,
}

_FULL = {
    **{
        f"collect_{name}": 0.3 * share
        for name, share in {
            "sapling": 0.2,
            "wood": 0.2,
            "stone": 0.18,
            "drink": 0.17,
            "coal": 0.1,
            "iron": 0.1,
            "diamond": 0.05,
        }.items()
    },
    "defeat_skeleton": 0.04,
    "defeat_zombie": 0.06,
    "eat_cow": 0.07,
    "eat_plant": 0.03,
    **{
        f"make_{material}_{tool}": 0.15 * share * 0.5
        for material, share in {"iron": 0.1, "stone": 0.3, "wood": 0.6}.items()
        for tool in ("pickaxe", "sword")
    },
    "place_furnace": 0.015,
    "place_plant": 0.03,
    "place_stone": 0.045,
    "place_table": 0.06,
}
"""Shares of AMAGO's instructions (arXiv 2310.09971, the authors' code at release); 0.2 is travel."""

TECH_TREE = (
    "collect_wood",
    "place_table",
    "make_wood_pickaxe",
    "make_wood_sword",
    "collect_stone",
    "make_stone_pickaxe",
    "make_stone_sword",
    "collect_coal",
    "place_furnace",
    "collect_iron",
    "make_iron_pickaxe",
    "make_iron_sword",
    "collect_diamond",
)
"""Every step needs none but earlier ones."""

PRESETS = {
    "easy": (_EASY, 0.0),
    "full": (_FULL, 0.2),
    "mixed": (_FULL, 0.2),
    "tech-tree": ({}, 0.0),
}
"""By preset: weights of achievements, and the chance of a travel goal; see `draw_instruction`."""
_TECH_TREE_SHARES = {"mixed": 1 / 3, "tech-tree": 1.0}
"""By preset: the chance that the whole instruction follows the tech tree."""


def draw_instruction(
    preset: str, most_goals: int, position: tuple[int, int], rng: np.random.Generator
) -> tuple[int, ...]:
    """1 to `most_goals` goals of a preset: each drawn on its own, or steps of the tech tree.

    Those are in the tree's order, each at most once, from its first steps up to one that is drawn:
    so all depths are asked for.
    """
    share = _TECH_TREE_SHARES.get(preset, 0.0)
    if share and rng.random() < share:
        return _draw_steps(most_goals, rng)
    weights, travel = PRESETS[preset]
    names = list(weights)
    shares = np.array(list(weights.values())) / sum(weights.values())
    goals = []
    for _ in range(int(rng.integers(1, most_goals + 1))):
        if rng.random() < travel:
            goals.append(_draw_travel(position, rng))
        else:
            goals.append(ACHIEVEMENTS[names[int(rng.choice(len(names), p=shares))]])
    return tuple(goals)


def _draw_steps(most_goals: int, rng: np.random.Generator) -> tuple[int, ...]:
    depth = int(rng.integers(1, len(TECH_TREE) + 1))
    number = min(depth, int(rng.integers(1, most_goals + 1)))
    steps = np.sort(rng.choice(depth, number, replace=False))
    return tuple(ACHIEVEMENTS[TECH_TREE[step]] for step in steps.tolist())


def travel_goal(position: tuple[int, int]) -> int | None:
    """The travel goal that a cell meets: the grid point less than two cells away, if any."""
    i, j = (min(12, max(0, round(value / 5))) for value in position)
    if (position[0] - 5 * i) ** 2 + (position[1] - 5 * j) ** 2 >= _REACH**2:
        return None
    return _FIRST_TRAVEL + i * len(GRID) + j


def _draw_travel(position: tuple[int, int], rng: np.random.Generator) -> int:
    """Near points more often: a distance d in 1..44 with weight 45 - d, then the farthest within."""
    weights = np.arange(44, 0, -1)
    limit = 1 + int(rng.choice(44, p=weights / weights.sum()))
    x, y = np.meshgrid(np.arange(13), np.arange(13), indexing="ij")
    distance = np.hypot(5 * x - position[0], 5 * y - position[1]) + rng.random(x.shape)
    reachable = np.where(distance <= limit, distance, -1.0)
    best = int(np.argmax(reachable)) if reachable.max() >= 0 else int(np.argmin(distance))
    return _FIRST_TRAVEL + best

"""Crafter's instructions: what each preset asks for, and that it can be done in that order."""

from collections import Counter

import numpy as np
import pytest
from crafter import constants

from retold.tasks.crafter_goals import ACHIEVEMENTS, TECH_TREE, VOCABULARY, draw_instruction

CENTER = (32, 32)


def draw(preset: str, goals: int, seed: int) -> list[str]:
    """An instruction in the package's names; travel goals are all called travel."""
    names = {goal: name for name, goal in ACHIEVEMENTS.items()}
    instruction = draw_instruction(preset, goals, CENTER, np.random.default_rng(seed))
    return [names.get(goal, VOCABULARY.goals[goal][0]) for goal in instruction]


def needs(step: str) -> set[str]:
    """Achievements that a step of the tech tree needs, by the package's own rules."""
    verb, _, what = step.partition("_")
    collect = {next(iter(rule["receive"])): rule for rule in constants.collect.values()}
    rule = {"collect": collect, "place": constants.place, "make": constants.make}[verb][what]
    things = {*rule.get("require", ()), *rule.get("uses", ()), *rule.get("nearby", ())}
    made = {"table": "place_table", "furnace": "place_furnace"}
    tools = {thing: f"make_{thing}" for thing in constants.make}
    return {(made | tools).get(thing, f"collect_{thing}") for thing in things}


def test_every_achievement_of_the_package_is_a_goal() -> None:
    assert set(ACHIEVEMENTS) == set(constants.achievements)


def test_every_step_of_the_tech_tree_needs_none_but_earlier_ones() -> None:
    for place, step in enumerate(TECH_TREE):
        assert needs(step) <= set(TECH_TREE[:place]), step


def test_the_tech_tree_asks_for_steps_in_its_order_and_each_once() -> None:
    deepest: Counter[int] = Counter()
    for seed in range(400):
        steps = [TECH_TREE.index(name) for name in draw("tech-tree", 5, seed)]
        assert steps == sorted(set(steps)) and 1 <= len(steps) <= 5
        deepest[steps[-1]] += 1
    assert set(deepest) == set(range(len(TECH_TREE)))


def test_mixed_asks_for_the_tech_tree_a_third_of_the_time_and_else_for_what_full_does() -> None:
    known: set[str] = set()
    travels = 0
    for seed in range(600):
        names = draw("mixed", 1, seed)
        known.update(names)
        travels += names == ["travel"]
    # A fifth of two thirds, within four standard deviations.
    assert travels == pytest.approx(600 * 0.2 * 2 / 3, abs=34)
    assert {"defeat_zombie", "eat_cow", "place_stone", "make_stone_sword"} <= known


@pytest.mark.parametrize(
    ("preset", "names"),
    [
        ("easy", ["eat_cow", "collect_wood", "collect_sapling"]),
        ("full", ["make_wood_sword", "collect_coal", "collect_sapling"]),
    ],
)
def test_a_seed_asks_for_what_it_asked_before(preset: str, names: list[str]) -> None:
    assert draw(preset, 3, 7) == names

"""Random and reference returns of every task, against the figures that others measured.

A mean of seeded episodes must lie within 3.5 of its standard errors of the figure (a true figure
fails one time in 2,000), plus what the figure itself is uncertain by, which each row states.
"""

from typing import Any

import numpy as np
import pytest

from retold.tasks.registry import complete_arguments, find_declaration, find_task, make_task

DARK = {"size": 5, "attempts": 4, "attempt_steps": 15}
DOORS = {"size": 4, "attempt_steps": 16, "horizon": 80}
BREEZE = {"actions": "discrete", "limit": 40, "radius": 0.15, "strength": 0.05}
RANDOM: list[tuple[str, dict[str, Any], int, float, float]] = [
    # task, arguments, episodes, figure, uncertainty of the figure
    ("bandit", {}, 400, 25.0, 0.0),
    ("bandit", {"arms": 10, "pulls": 100}, 300, 50.0, 0.0),
    ("dark-room", DARK, 600, 2.42, 0.1),
    ("dark-room", {"size": 7, "attempts": 5, "attempt_steps": 20}, 400, 2.0, 0.1),
    ("dark-room", {}, 200, 2.5, 0.2),
    ("frozen-lake", {}, 200, 0.10, 0.03),
    ("frozen-lake", {"hard": True}, 200, 0.04, 0.02),
    ("frozen-lake", {"recover": True}, 150, -2.5, 0.2),
    ("key-to-door", DOORS, 500, 2.49, 0.1),
    ("key-to-door", {"size": 5, "attempt_steps": 25, "horizon": 100}, 500, 1.87, 0.1),
    ("key-to-door", {"size": 3, "attempt_steps": 12, "horizon": 60}, 500, 3.5, 0.1),
    ("key-to-door", {}, 120, 2.5, 0.2),
    ("maze", {}, 150, 0.56, 0.0),
    ("package-delivery", {}, 300, 0.20, 0.02),
    ("tmaze", {}, 300, -0.75, 0.0),
    ("tmaze-active", {}, 300, -0.8125, 0.0),
    ("wind", {}, 300, 0.006, 0.01),
    ("wind", BREEZE, 400, 0.20, 0.02),
    ("cheetah-velocity", {"limit": 200}, 40, -334.0, 15.0),
    ("cheetah-wind", {"limit": 200}, 40, -280.0, 5.0),
]
BEST: list[tuple[str, dict[str, Any], int, float, float]] = [
    ("bandit", {}, 300, 37.6, 0.3),  # UCB, whose constant is not told
    ("bandit", {"arms": 10, "pulls": 100}, 200, 81.7, 0.5),
    ("dark-room", DARK, 300, 54.2, 0.05),
    ("dark-room", {}, 200, 165.4, 0.05),
    ("frozen-lake", {}, 20, 10.0, 0.0),
    ("frozen-lake", {"hard": True}, 20, 10.0, 0.0),
    ("key-to-door", {}, 200, 89.0, 1.0),
    ("key-to-door", {"light": True, "shuffle_actions": True}, 200, 89.0, 1.0),
    ("key-to-door", DOORS, 400, 28.8, 0.2),
    ("maze", {"goals": 3}, 60, 3.0, 0.0),
    ("package-delivery", {}, 200, 3.0, 0.0),
    ("tmaze", {}, 10, 1.0, 0.0),
    ("tmaze", {"slack": 4}, 10, 1.0, 0.0),
    ("tmaze-active", {}, 10, 1.0, 0.0),
    ("tmaze-active", {"corridor": 5, "slack": 4}, 10, 1.0, 0.0),
    ("wind", {}, 100, 62.2, 0.3),
    ("wind", BREEZE, 100, 31.2, 0.3),
]
POPGYM = find_declaration("popgym").members()  # type: ignore[union-attr]


def returns(name: str, arguments: dict[str, Any], episodes: int, is_best: bool) -> Any:
    """`[episodes]`: returns of random actions, or of the task's player."""
    environment = make_task(name, arguments)
    environment.action_space.seed(0)
    task, totals = find_task(name), []
    for seed in range(episodes):
        observation, _ = environment.reset(seed=seed)
        player = task.player(environment) if is_best and task.player else None
        total, is_over = 0.0, False
        while not is_over:
            action = environment.action_space.sample() if player is None else player(observation)
            observation, reward, terminated, truncated, _ = environment.step(action)
            total += float(reward)
            is_over = terminated or truncated
        totals.append(total)
    environment.close()
    return np.array(totals)


def check(found: Any, figure: float, uncertainty: float) -> None:
    error = found.std(ddof=1) / len(found) ** 0.5
    assert abs(found.mean() - figure) <= 3.5 * error + uncertainty + 1e-6, (found.mean(), error)


@pytest.mark.parametrize(("name", "arguments", "episodes", "figure", "uncertainty"), RANDOM)
def test_random_actions_return_the_figure(
    name: str, arguments: dict[str, Any], episodes: int, figure: float, uncertainty: float
) -> None:
    check(returns(name, arguments, episodes, is_best=False), figure, uncertainty)


@pytest.mark.parametrize(("name", "arguments", "episodes", "figure", "uncertainty"), BEST)
def test_the_player_returns_the_figure(
    name: str, arguments: dict[str, Any], episodes: int, figure: float, uncertainty: float
) -> None:
    check(returns(name, arguments, episodes, is_best=True), figure, uncertainty)


@pytest.mark.parametrize(
    ("name", "arguments"), [row[:2] for row in RANDOM if "cheetah" not in row[0]]
)
def test_the_declared_returns_are_those_figures(name: str, arguments: dict[str, Any]) -> None:
    declared = find_task(name).returns(complete_arguments(name, arguments))
    for found, rows, share in ((declared.random, RANDOM, 0.02), (declared.best, BEST, 0.02)):
        figures = {repr(row[:2]): row[3] for row in rows}
        figure = figures.get(repr((name, arguments)))
        if found is not None and figure is not None:
            assert found == pytest.approx(figure, rel=share, abs=0.01)


@pytest.mark.parametrize("member", POPGYM)
def test_popgym_returns_its_figures(member: str) -> None:
    """The figures are means of at least 20 episodes: theirs are as uncertain as ours."""
    name = f"popgym/{member}"
    declared = find_task(name).returns({})
    assert declared.random is not None
    found = returns(name, {}, 20, is_best=False)
    rare = 0.15 if "Escape" in member else 0.0  # an escape, which few samples hold
    check(found, declared.random, 3.5 * found.std(ddof=1) / len(found) ** 0.5 + rare)
    if find_task(name).player is not None:
        assert declared.best is not None
        found = returns(name, {}, 10, is_best=True)
        check(found, declared.best, 0.03)

"""The coverage report as a figure: four panels, collected beside retold."""

from pathlib import Path
from typing import Any

import numpy as np

from retold.relabel.coverage import Coverage, Histogram
from retold.schemas.errors import UsageError

_COLORS = {"collected": "#8a8f98", "retold": "#c2502e"}
_MOST_GOALS = 24
"""Goals of the figure: those achieved most."""
FORMATS = (".png", ".svg", ".pdf")


def draw_coverage(coverage: Coverage, path: Path) -> None:
    """Write the figure; an existing file is replaced only once the new one is whole.

    Raises:
        UsageError: matplotlib is missing, or the file's ending names no format.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--figure {path}: end its name in one of {', '.join(FORMATS)}.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "--figure needs matplotlib. Install it with `pip install 'retold[figures]'`."
        ) from error
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    panels = figure.subplots(2, 2)
    figure.suptitle(f"What relabelling adds: {coverage.dataset}")
    _draw_goals(panels[0, 0], coverage)
    _draw_density(panels[0, 1], coverage)
    _draw_shares(panels[1, 0], coverage.returns, "goals completed in order (return)")
    _draw_shares(panels[1, 1], coverage.instruction_lengths, "goals commanded")
    aside = path.with_name(f".{path.stem}.part{path.suffix}")
    figure.savefig(aside, dpi=150)
    aside.replace(path)


def _draw_goals(axes: Any, coverage: Coverage) -> None:
    goals = coverage.goals[:_MOST_GOALS]
    place = np.arange(len(goals))
    axes.barh(
        place, [goal.achieved or 0 for goal in goals], color="#dddddd", label="achieved in episodes"
    )
    for shift, name in ((-0.2, "collected"), (0.2, "retold")):
        met = [getattr(goal, f"{name}_met") for goal in goals]
        axes.barh(place + shift, met, height=0.35, color=_COLORS[name], label=f"met, {name}")
    axes.set_yticks(place, [goal.goal for goal in goals], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("symlog")
    axes.set_xlabel("episodes")
    axes.set_title(f"the {len(goals)} goals achieved most, of {len(coverage.goals)}")
    axes.legend(fontsize=7)


def _draw_density(axes: Any, coverage: Coverage) -> None:
    names = [telling.told for telling in coverage.tellings]
    values = [telling.reward_per_1000_steps for telling in coverage.tellings]
    bars = axes.bar(names, values, color=[_COLORS[name] for name in names], width=0.6)
    axes.bar_label(bars, fmt="%.2f")
    axes.set_ylabel("reward per 1,000 steps")
    axes.set_title("reward density")


def _draw_shares(axes: Any, histogram: tuple[Histogram, ...], label: str) -> None:
    place = np.array([item.value for item in histogram])
    for shift, name in ((-0.2, "collected"), (0.2, "retold")):
        counts = np.array([getattr(item, name) for item in histogram], float)
        if counts.sum():
            axes.bar(place + shift, counts / counts.sum(), 0.38, color=_COLORS[name], label=name)
    axes.set_xticks(place)
    axes.set_xlabel(label)
    axes.set_ylabel("share of episodes")
    axes.legend(fontsize=8)

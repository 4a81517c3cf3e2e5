"""`retold explain`: an episode's goal events as a time line, beside every instruction put to it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from retold.cli.printing import format_fields
from retold.dataset.paths import DatasetPath
from retold.dataset.sources import SourceFlag

if TYPE_CHECKING:
    from retold.relabel.explanation import Explanation, Moment, Telling

_MOST_UNMARKED = 3
"""Rows in a row of the time line at which nothing is met, before they are folded into one."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, kw_only=True)
class ExplainConfig(SourceFlag):
    """What `retold explain` is asked."""

    dataset: DatasetPath
    """Dataset of variants, or of collected episodes. It is never written to."""
    episode: str
    """Id of an episode, of a variant or of a variant's source, the id's beginning, or a row number."""
    all: bool = False
    """Show every transition with a goal event, also runs of them at which nothing is met."""


@dataclass(frozen=True, kw_only=True)
class ExplainResult:
    """The explanation."""

    explanation: "Explanation"
    is_whole: bool

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain values."""
        return asdict(self.explanation)

    def describe(self) -> str:
        """Facts, instructions, and the time line."""
        told = self.explanation
        facts = {
            "episode": told.episode_id,
            "dataset": told.dataset,
            "task": told.task,
            "length": f"{told.length:,} transitions",
            "true at the start": ", ".join(told.initial_goals) or "no goal",
        }
        page = [format_fields(facts), *_tellings(told.tellings)]
        lines = [page[0], "", *page[1:], "", *self._time_line()]
        return "\n".join(line.rstrip() for line in lines)

    def _time_line(self) -> Iterator[str]:
        told = self.explanation
        marks = _marks(told.tellings)
        names = ["*", *_names(told.tellings)[1:]]
        width = max(2, *(len(str(len(t.instruction))) + 1 for t in told.tellings))
        goal_width = max([len(_goals(m, told.length)) for m in told.moments] + [13])
        yield f"{'step':>6}  {'goals achieved':<{goal_width}}  " + " ".join(
            f"{name:>{width}}" for name in names
        )
        for step, text, is_marked, count in self._rows(marks):
            cells = [
                marks.get((number, step), "") if is_marked else "" for number in range(len(names))
            ]
            label = f"{step:>6}" if count == 1 else f"{'…':>6}"
            yield f"{label}  {text:<{goal_width}}  " + " ".join(f"{c:>{width}}" for c in cells)

    def _rows(self, marks: dict[tuple[int, int], str]) -> Iterator[tuple[int, str, bool, int]]:
        """Step, text, whether anything is met, and how many moments the row stands for."""
        told = self.explanation
        marked = {step for _, step in marks}
        run: list[Moment] = []
        for moment in (*told.moments, None):
            if moment is not None and moment.step not in marked:
                if moment.began or self.is_whole:
                    run.append(moment)
                continue
            if len(run) > _MOST_UNMARKED and not self.is_whole:
                yield run[0].step, f"{len(run)} transitions at which goals began", False, len(run)
            else:
                yield from ((m.step, _goals(m, told.length), False, 1) for m in run)
            run = []
            if moment is not None:
                yield moment.step, _goals(moment, told.length), True, 1


def explain(config: ExplainConfig) -> ExplainResult:
    """The episode explained."""
    from retold.dataset.reader import DatasetReader
    from retold.relabel.explanation import explain_episode

    moved = config.moved(config.dataset)
    with DatasetReader.open(config.dataset, sources=moved) as reader:
        found = explain_episode(reader, config.episode)
    return ExplainResult(explanation=found, is_whole=config.all)


def _names(tellings: Sequence["Telling"]) -> list[str]:
    """`*` for the original, then A, B, … Z, AA, AB, …."""
    names = [*_LETTERS, *(one + two for one in _LETTERS for two in _LETTERS)]
    return ["*", *(names[i % len(names)] for i in range(len(tellings) - 1))]


def _tellings(tellings: Sequence["Telling"]) -> Iterator[str]:
    """A line for each instruction; goals that are met carry the step."""
    width = max(len(telling.name) for telling in tellings)
    for name, telling in zip(_names(tellings), tellings, strict=True):
        steps = [*telling.completed, *[None] * len(telling.instruction)]
        goals = " → ".join(
            goal if step is None else f"{goal} [{step}]"
            for goal, step in zip(telling.instruction, steps, strict=False)
        )
        yield (
            f"{name:>2}  {telling.name:<{width}}  return {telling.episode_return:g}, "
            f"{telling.length:,} steps, {telling.ends}: {goals}"
        )


def _marks(tellings: Sequence["Telling"]) -> dict[tuple[int, int], str]:
    """What stands at (column, step): the number of the goal met, with a dot after the last one."""
    marks = {}
    for column, telling in enumerate(tellings):
        for number, step in enumerate(telling.completed, 1):
            marks[column, step] = (
                f"{number}." if number == len(telling.instruction) else str(number)
            )
    return marks


def _goals(moment: "Moment", length: int) -> str:
    """Goals that began; those that only went on in brackets."""
    text = ", ".join([*moment.began, *(f"({goal})" for goal in moment.continued)])
    return text if len(text) <= 60 else text[:59] + "…"

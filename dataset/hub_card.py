"""The card (`README.md`) of a dataset on the Hub: made from the data, around what people wrote."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retold.dataset.hub_card_text import (
    cite,
    plain,
    short,
    show_number,
    table,
    table_of_records,
    write_card,
)
from retold.dataset.hub_names import HUB_PROTOCOL
from retold.dataset.hub_viewer import VIEWER_FOLDER
from retold.dataset.reader import DatasetReader
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription

_MOST_GOALS = 20
_MOST_COMMITS = 10
FIGURE = f"{VIEWER_FOLDER}/coverage.png"


@dataclass(frozen=True, kw_only=True)
class Retelling:
    """What relabelling knows of a dataset; `retold.cli` measures it, since stages do not meet."""

    tellings: Sequence[Mapping[str, Any]] = ()
    """A row for what was collected, and one for what was retold."""
    goals: Sequence[Mapping[str, Any]] = ()
    """Those achieved most first."""
    figure: bytes | None = None
    """The coverage figure, as PNG."""


def make_card(
    repository: str,
    reader: DatasetReader,
    summary: Mapping[str, Any],
    retelling: Retelling,
    *,
    license: str,
    existing: str,
) -> str:
    """The card of a snapshot.

    Args:
        repository: `OWNER/NAME`.
        reader: of what is pushed.
        summary: of it, as `retold.dataset.summary` makes it.
        retelling: what relabelling adds.
        license: an identifier of the Hub's, such as `cc-by-4.0`.
        existing: the card that is there; what people wrote in it is kept.
    """
    names = [task.name for task in reader.schema.tasks]
    metadata = {
        "license": license,
        "task_categories": ["reinforcement-learning"],
        "tags": ["reinforcement-learning", "retold", "trajectories", *dict.fromkeys(names)],
        "size_categories": [_size_category(len(reader))],
        "configs": [
            {
                "config_name": "episodes",
                "default": True,
                "data_files": [{"split": "train", "path": f"{VIEWER_FOLDER}/episodes-*.parquet"}],
            }
        ],
    }
    sections = _sections(repository, reader, summary, retelling, license)
    return write_card(repository, existing, metadata, sections, kept=("task_categories",))


def _size_category(rows: int) -> str:
    steps = [(10**3, "1K"), (10**4, "10K"), (10**5, "100K"), (10**6, "1M"), (10**7, "10M")]
    below = "n<1K"
    for (low, name), (_, above) in zip(steps, [*steps[1:], (0, "100M")], strict=True):
        if rows >= low:
            below = f"{name}<n<{above}"
    return below


def _sections(
    repository: str,
    reader: DatasetReader,
    summary: Mapping[str, Any],
    retelling: Retelling,
    license: str,
) -> Iterable[str]:
    yield _introduction(reader, summary)
    yield _loading(repository)
    yield "## Task\n\n" + "\n\n".join(describe_task(task) for task in reader.schema.tasks)
    yield "## Spaces\n\n" + describe_spaces(reader.schema)
    goals = describe_goals(reader.schema, retelling)
    if goals:
        yield "## Goals\n\n" + goals
    yield "## Fields\n\n" + _describe_fields(summary)
    yield "## Statistics\n\n" + _describe_statistics(summary)
    retold = _describe_retelling(reader, retelling)
    if retold:
        yield "## Relabelling\n\n" + retold
    yield "## Lineage\n\n" + _describe_lineage(summary)
    yield f"## Licence\n\n`{plain(license)}`"
    title = f"dataset {summary['dataset_id']} at commit {summary['snapshot']['number']}"
    year = str(summary["commits"][-1]["time"])[:4] if summary["commits"] else ""
    yield "## Citation\n\n" + cite(repository, "datasets/", title, year)


def _introduction(reader: DatasetReader, summary: Mapping[str, Any]) -> str:
    names = ", ".join(f"`{plain(task.name)}`" for task in reader.schema.tasks)
    variants = summary["variants"]
    told = f", {variants:,} of them retold in hindsight" if variants else ""
    return (
        f"{len(reader):,} episodes{told} and {summary['steps']:,} steps of {names}, in "
        f"Retold's format: Zarr arrays, an append-only log of "
        f"commits, and this table of live episodes. It is dataset `{reader.dataset_id}` at commit "
        f"{reader.snapshot.number}."
    )


def _loading(repository: str) -> str:
    url = f"{HUB_PROTOCOL}://{repository}"
    name = repository.partition("/")[2]
    return f"""## Loading

With Retold, streamed (`retold pull {repository} {name}` makes a copy, every file checked):

```python
from retold.dataset.reader import DatasetReader

with DatasetReader.open("{url}") as reader:
    episode = reader.read_episode(0)
    print(len(reader), episode.length, episode.observation.keys())
```

With Minari's interface:

```python
from retold.dataset.minari_view import as_minari

dataset = as_minari("{url}")
print(dataset.total_episodes, dataset[0].rewards.sum())
```

With `datasets`, the table of episodes (lengths, returns, instructions, lineage):

```python
from datasets import load_dataset

episodes = load_dataset("{repository}", split="train")
print(episodes[0])
```"""


def describe_task(task: TaskDescription) -> str:
    """A task's facts and arguments, in Markdown."""
    rows = [(name, json.dumps(value)) for name, value in task.kwargs.items()]
    facts = (
        f"`{plain(task.name)}`, code version `{plain(task.code_version)}`: at most "
        f"{task.horizon:,} steps, a limit that is a {task.limit_is}."
    )
    return facts + ("\n\n" + table(("argument", "value"), rows) if rows else "")


def describe_spaces(schema: DatasetSchema) -> str:
    """A table of both spaces."""
    rows = [
        (name, short(str(space)))
        for name, space in (
            ("observation", schema.observation_space),
            ("action", schema.action_space),
        )
    ]
    return table(("space", "definition"), rows)


def describe_goals(schema: DatasetSchema, retelling: Retelling) -> str:
    """Tables of the goals there are, and of those achieved most; empty for tasks without."""
    parts = []
    for task in schema.tasks:
        if task.vocabulary is None:
            continue
        families = [
            (family.kind, family.size, " · ".join(_choices(axis) for axis in family.axes))
            for family in task.vocabulary.families
        ]
        parts.append(
            f"{task.vocabulary.size:,} goals of `{plain(task.name)}`; an instruction is an ordered "
            f"list of at most {task.max_instruction_length}.\n\n"
            + table(("kind", "goals", "words"), families)
        )
    if retelling.goals:
        shown = retelling.goals[:_MOST_GOALS]
        more = len(retelling.goals) - len(shown)
        note = f"\n\n{more:,} more goals are left out." if more else ""
        parts.append(table_of_records(shown) + note)
    return "\n\n".join(parts)


def _choices(axis: Sequence[str]) -> str:
    return "/".join(axis) if len(axis) <= 6 else f"{axis[0]}/{axis[1]}/…/{axis[-1]} ({len(axis)})"


def _describe_fields(summary: Mapping[str, Any]) -> str:
    rows = [
        (
            field["field"],
            field["dtype"],
            "×".join(map(str, field["shape"] or ())),
            field["bytes"],
            show_number(field["bytes_per_step"]),
        )
        for field in summary["fields"]
    ]
    return table(("field", "type", "shape", "bytes", "bytes a step"), rows)


def _describe_statistics(summary: Mapping[str, Any]) -> str:
    counts = [
        (name.replace("_", " "), show_number(summary[name]))
        for name in ("episodes", "variants", "steps", "shards", "bytes", "success")
        if summary[name] is not None
    ]
    spreads = [
        (name, *(show_number(summary[key][column]) for column in _SPREAD))
        for key, name in (("length", "length"), ("episode_return", "return"))
        if summary[key]
    ]
    counted = table(("", "whole dataset"), counts)
    return counted + "\n\n" + table(("per episode", *_SPREAD), spreads)


_SPREAD = ("mean", "minimum", "median", "maximum")


def _describe_retelling(reader: DatasetReader, retelling: Retelling) -> str:
    used = Counter(name for name in reader.table["strategy"].to_pylist() if name is not None)
    if not used and len(retelling.tellings) < 2:
        return ""
    parts = [table(("strategy", "variants"), used.most_common())] if used else []
    if retelling.tellings:
        parts.append(table_of_records(retelling.tellings))
    if retelling.figure is not None:
        parts.append(f"![What relabelling adds: goals, reward density, returns]({FIGURE})")
    return "\n\n".join(parts)


def _describe_lineage(summary: Mapping[str, Any]) -> str:
    ancestors = [
        (
            f"`{ancestor['dataset_id']}`",
            ancestor["relation"],
            ancestor["snapshot"],
            ", ".join(f"{count:,} {kind}" for kind, count in ancestor["operations"].items()),
        )
        for ancestor in summary["lineage"]
    ]
    commits = [
        (commit["number"], commit["time"], commit["operation"], commit["episodes"])
        for commit in summary["commits"][: -_MOST_COMMITS - 1 : -1]
    ]
    made = table(("commit", "time", "operation", "episodes added"), commits)
    if not ancestors:
        return made
    return table(("made from dataset", "as", "commit", "which had"), ancestors) + "\n\n" + made

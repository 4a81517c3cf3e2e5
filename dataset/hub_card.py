"""The card (`README.md`) of a dataset on the Hub: made from the data, around what people wrote."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retold.dataset.hub_card_text import (
    cite,
    plain,
    show_bytes,
    show_number,
    table,
    table_of_records,
    write_card,
)
from retold.dataset.hub_names import HUB_PROTOCOL
from retold.dataset.hub_origin import SOURCES_FOLDER
from retold.dataset.hub_viewer import VIEWER_FOLDER, spell_instruction
from retold.dataset.reader import DatasetReader
from retold.dataset.space_words import space_rows
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription

_MOST_GOALS = 10
_EXAMPLES = 5
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
    yield _introduction(reader, summary, retelling)
    if retelling.figure is not None:
        yield f"![What relabelling adds: goals, reward density, returns]({FIGURE})"
    examples = _show_episodes(reader)
    if examples:
        yield examples
    yield _loading(repository)
    yield "## Task\n\n" + "\n\n".join(describe_task(task) for task in reader.schema.tasks)
    yield "## Spaces\n\n" + describe_spaces(reader.schema)
    goals = describe_goals(reader.schema, retelling)
    if goals:
        yield "## Goals\n\n" + goals
    yield "## Statistics\n\n" + _describe_statistics(summary)
    retold = _describe_retelling(reader, retelling)
    if retold:
        yield "## Relabelling\n\n" + retold
    yield "## Fields\n\n" + _describe_fields(summary)
    yield "## Lineage\n\n" + _describe_lineage(summary)
    yield f"## Licence\n\n`{plain(license)}`"
    title = f"dataset {summary['dataset_id']} at commit {summary['snapshot']['number']}"
    year = str(summary["commits"][-1]["time"])[:4] if summary["commits"] else ""
    yield "## Citation\n\n" + cite(repository, "datasets/", title, year)


def _introduction(reader: DatasetReader, summary: Mapping[str, Any], retelling: Retelling) -> str:
    tasks = dict.fromkeys(f"`{plain(task.name)}`" for task in reader.schema.tasks)
    names = ", ".join(tasks)
    variants = summary["variants"]
    steps = f"{summary['steps']:,} steps"
    if not variants:
        told = f"{len(reader):,} episodes of {names}, {steps} in all"
    elif variants == len(reader):
        told = f"{variants:,} hindsight retellings of episodes of {names}, {steps} in all"
    else:
        told = f"{len(reader):,} episodes of {names}, {variants:,} of them hindsight retellings, {steps} in all"
    return (
        f"{told}{_compare(retelling)}\n\nStored by Retold as standard Zarr arrays with an "
        f"append-only log: dataset `{reader.dataset_id}` at commit {reader.snapshot.number}. The "
        f"viewer shows its live episodes, one a row."
    )


def _compare(retelling: Retelling) -> str:
    """How much denser rewards are in retellings than in what was collected."""
    density = {telling["told"]: telling["reward_per_1000_steps"] for telling in retelling.tellings}
    collected, retold = density.get("collected"), density.get("retold")
    if not collected or not retold:
        return "."
    return (
        f": every 1,000 steps bring a reward of {retold:.3g} where the collected episodes "
        f"brought {collected:.3g}."
    )


def _show_episodes(reader: DatasetReader) -> str:
    """A few episodes with instructions in words, spread over the dataset; empty where there are none."""
    places = [len(reader) * part // _EXAMPLES for part in range(_EXAMPLES)]
    rows = []
    for place in dict.fromkeys(places):
        record = reader.record(place)
        shard, _ = reader.shard_of(place)
        words = spell_instruction(shard.schema.tasks[record.task].vocabulary, record.instruction)
        if words:
            met = f"{len(record.completed)} of {len(record.instruction)}"
            rows.append((words, met, record.length, show_number(record.episode_return)))
    if not rows:
        return ""
    header = ("instruction", "goals met", "steps", "return")
    return "## Episodes\n\n" + table(header, rows)


def _loading(repository: str) -> str:
    url = f"{HUB_PROTOCOL}://{repository}"
    name = repository.partition("/")[2]
    return f"""## Loading

With Retold, read where it lies; `retold pull {repository} {name}`
makes a copy, every file checked, and `retold train run --data {url}` trains on it:

```python
from retold.dataset.reader import DatasetReader

with DatasetReader.open("{url}") as reader:
    episode = reader.read_episode(0)
    print(len(reader), episode.length, episode.observation.keys())
```

With Minari's interface:

```python
from retold.dataset import as_minari

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
    end = "the world ends" if task.limit_is == "termination" else "they are cut"
    facts = (
        f"Episodes of `{plain(task.name)}` (code version `{plain(task.code_version)}`) have at most "
        f"{task.horizon:,} steps, after which {end}."
    )
    return facts + ("\n\n" + table(("argument", "value"), rows) if rows else "")


def describe_spaces(schema: DatasetSchema) -> str:
    """A table of both spaces."""
    rows = [
        *space_rows(schema.observation_space, "observation"),
        *space_rows(schema.action_space, "action"),
    ]
    return table(("space", "what it holds"), rows)


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
        rows = [[goal[name] for name in _GOAL_COLUMNS] for goal in shown]
        parts.append(table(tuple(_GOAL_COLUMNS.values()), rows) + note)
    return "\n\n".join(parts)


_GOAL_COLUMNS = {
    "goal": "goal",
    "achieved": "achieved in episodes",
    "collected": "asked for",
    "collected_met": "and met",
    "retold": "asked for, retold",
    "retold_met": "and met, retold",
}


def _choices(axis: Sequence[str]) -> str:
    return "/".join(axis) if len(axis) <= 6 else f"{axis[0]}/{axis[1]}/…/{axis[-1]} ({len(axis)})"


def _describe_fields(summary: Mapping[str, Any]) -> str:
    rows = [
        (
            field["field"],
            field["dtype"],
            "×".join(map(str, field["shape"])) if field["shape"] else "–",
            show_bytes(field["bytes"]),
            show_number(field["bytes_per_step"]),
        )
        for field in summary["fields"]
    ]
    made = table(("field", "type", "shape", "on disk", "bytes a step"), rows)
    if any(field["dtype"] for field in summary["fields"]):
        return made
    return (
        f"Retellings have no arrays of their own: observations and actions are those of the episodes "
        f"that they retell, in `{SOURCES_FOLDER}/`.\n\n{made}"
    )


def _describe_statistics(summary: Mapping[str, Any]) -> str:
    success = summary["success"]
    facts = [
        f"{summary['episodes']:,} episodes",
        f"{summary['variants']:,} of them retellings" if summary["variants"] else "",
        f"{summary['steps']:,} steps",
        f"{show_bytes(summary['bytes'])} in {summary['shards']:,} shard{'s' * (summary['shards'] != 1)}",
        "" if success is None else f"{100 * success:.1f} % of episodes succeed",
    ]
    spreads = [
        (name, *(show_number(summary[key][column]) for column in _SPREAD))
        for key, name in (("length", "length"), ("episode_return", "return"))
        if summary[key]
    ]
    return ", ".join(filter(None, facts)) + ".\n\n" + table(("per episode", *_SPREAD), spreads)


_SPREAD = ("mean", "minimum", "median", "maximum")


def _describe_retelling(reader: DatasetReader, retelling: Retelling) -> str:
    used = Counter(name for name in reader.table["strategy"].to_pylist() if name is not None)
    if not used and len(retelling.tellings) < 2:
        return ""
    parts = [table(("strategy", "variants"), used.most_common())] if used else []
    if retelling.tellings:
        parts.append(table_of_records(retelling.tellings))
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
        (
            commit["number"],
            commit["time"][:16].replace("T", " "),
            commit["operation"],
            commit["episodes"],
        )
        for commit in summary["commits"][: -_MOST_COMMITS - 1 : -1]
    ]
    made = table(("commit", "time", "operation", "episodes added"), commits)
    if not ancestors:
        return made
    return table(("made from dataset", "as", "commit", "which had"), ancestors) + "\n\n" + made

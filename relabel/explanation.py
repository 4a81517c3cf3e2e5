"""One episode and all that it was told to be: its goal events beside every instruction put to it."""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from retold.dataset.reader import DatasetReader
from retold.relabel.source_shard import read_batches
from retold.schemas.episode import EpisodeRecord
from retold.schemas.errors import DatasetError
from retold.schemas.vocabulary import GoalVocabulary


@dataclass(frozen=True, kw_only=True)
class Telling:
    """The episode under one instruction."""

    name: str
    """`original`, or strategy, seed and number of the variant."""
    episode_id: str
    instruction: tuple[str, ...]
    completed: tuple[int, ...]
    """The step at which each goal was met."""
    length: int
    episode_return: float
    ends: str
    """`terminated` or `truncated`."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A transition at which something of note happened."""

    step: int
    began: tuple[str, ...]
    """Goals that began to hold or happened: what relabelling draws from."""
    continued: tuple[str, ...]
    """State goals that went on holding; they can be met, but not drawn."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """An episode explained."""

    dataset: str
    """Where its arrays are."""
    episode_id: str
    task: str
    length: int
    initial_goals: tuple[str, ...]
    """State goals true from the start; they earn nothing then."""
    tellings: tuple[Telling, ...]
    """The original first, then every live variant of the dataset asked."""
    moments: tuple[Moment, ...]
    """`[moments]`, by step: every transition with goal events."""


def explain_episode(reader: DatasetReader, episode: str) -> Explanation:
    """The time line of an episode, or of the source of a variant.

    Args:
        reader: of a dataset of variants, or of collected episodes (that knows of no variants).
        episode: id, beginning of one, or row; in a dataset of variants also a source's id.

    Raises:
        DatasetError: there is no such episode, or its task has no goals.
    """
    source, row = _find(reader, episode)
    record = source.record(row)
    shard, number = source.shard_of(row)
    task = shard.schema.tasks[record.task]
    if task.vocabulary is None:
        raise DatasetError(
            f"{reader.path}: task {task.name} has no goals, so there is nothing to explain. Look at "
            f"the episode with `retold info {reader.path}`."
        )
    vocabulary = task.vocabulary
    (batch,) = read_batches(shard, np.array([number]))
    onsets = set(
        zip(batch.history.onset_step.tolist(), batch.history.onset_goal.tolist(), strict=True)
    )
    events = list(zip(*(part.tolist() for part in source.read_events(row)), strict=True))
    variants = _variants(reader, source.dataset_id, record.episode_id)
    return Explanation(
        dataset=str(source.path),
        episode_id=record.episode_id,
        task=task.name,
        length=record.length,
        initial_goals=tuple(map(vocabulary.describe, record.initial_goals)),
        tellings=tuple(_tell(item, vocabulary) for item in (record, *variants)),
        moments=_moments(events, onsets, vocabulary),
    )


def _find(reader: DatasetReader, episode: str) -> tuple[DatasetReader, int]:
    """The reader and row of the episode itself, for a variant those of its source."""
    try:
        record = reader.record(reader.find(episode))
    except DatasetError:
        ids = pc.unique(reader.table["source_episode_id"]).drop_null().to_pylist()
        known = [name for name in ids if len(episode) >= 4 and name.startswith(episode)]
        if len(known) != 1:
            raise
        table = reader.table
        place = pc.index(table["source_episode_id"], known[0]).as_py()
        record = reader.record(place)
    if record.source_dataset_id is None or record.source_episode_id is None:
        return reader, reader.find(record.episode_id)
    source = reader.source_reader(record.source_dataset_id)
    return source, source.find(record.source_episode_id)


def _variants(reader: DatasetReader, dataset_id: str, episode_id: str) -> list[EpisodeRecord]:
    table = reader.table
    mine = pc.and_(
        pc.equal(table["source_dataset_id"], dataset_id),
        pc.equal(table["source_episode_id"], episode_id),
    )
    rows = np.flatnonzero(pc.fill_null(mine, False).to_numpy())
    return [reader.record(row) for row in rows.tolist()]


def _tell(record: EpisodeRecord, vocabulary: GoalVocabulary) -> Telling:
    name = f"{record.strategy} {record.relabel_seed}.{record.variant}"
    return Telling(
        name=name if record.is_variant else "original",
        episode_id=record.episode_id,
        instruction=tuple(map(vocabulary.describe, record.instruction)),
        completed=record.completed,
        length=record.length,
        episode_return=record.episode_return,
        ends="terminated" if record.terminated else "truncated",
    )


def _moments(
    events: list[tuple[int, int]], onsets: set[tuple[int, int]], vocabulary: GoalVocabulary
) -> tuple[Moment, ...]:
    goals: dict[int, tuple[list[str], list[str]]] = {}
    for event in events:
        began, continued = goals.setdefault(event[0], ([], []))
        (began if event in onsets else continued).append(vocabulary.describe(event[1]))
    return tuple(
        Moment(step=step, began=tuple(began), continued=tuple(continued))
        for step, (began, continued) in sorted(goals.items())
    )

"""`retold merge`: a new dataset of all episodes of several."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields

from retold.dataset.derive import Selection, refuse_existing, write_dataset
from retold.dataset.divergence import find_divergence
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import SourceFlag
from retold.schemas.errors import DatasetError, UsageError


@dataclass(frozen=True, kw_only=True)
class MergeConfig(SourceFlag):
    """What `retold merge` is asked."""

    output: DatasetPath
    """Dataset to make; must not exist."""
    data: tuple[DatasetPath, ...]
    """Dataset, or snapshot (`DATASET@12`), to take episodes from; give it for each."""

    def __post_init__(self) -> None:
        if len(self.data) < 2:
            raise UsageError("One dataset cannot be merged. Give --data at least twice.")


@dataclass(frozen=True, kw_only=True)
class MergeResult:
    """What was joined."""

    output: str
    episodes: int
    """Episodes of the new dataset."""
    shared: int
    """Episodes that several of the datasets hold, each taken once."""
    evicted: int
    """Episodes left out because a copy of the same dataset has evicted them since."""


def merge(config: MergeConfig) -> MergeResult:
    """Copy the episodes of several datasets into a new one, where they keep their ids.

    Raises:
        DatasetError: the datasets do not fit together, or the output exists.
    """
    refuse_existing(config.output)
    with ExitStack() as stack:
        moved = config.moved(*config.data)
        readers = [
            stack.enter_context(DatasetReader.open(path, sources=moved)) for path in config.data
        ]
        for reader in readers[1:]:
            _check_fits(readers[0], reader)
        evicted = _find_evicted(readers)
        taken: dict[str, tuple[DatasetReader, int]] = {}
        selections, shared, left = [], 0, set()
        for reader in readers:
            rows = []
            for row, episode_id in enumerate(reader.table["episode_id"].to_pylist()):
                if episode_id in evicted:
                    left.add(episode_id)
                elif episode_id in taken:
                    _check_same(*taken[episode_id], reader, row)
                    shared += 1
                else:
                    taken[episode_id] = reader, row
                    rows.append(row)
            selections.append(Selection(reader, tuple(rows)))
        write_dataset(config.output, selections, operation="merge", details={})
    return MergeResult(
        output=str(config.output), episodes=len(taken), shared=shared, evicted=len(left)
    )


def _find_evicted(readers: Sequence[DatasetReader]) -> set[str]:
    """Episodes of copies' common past that one of the copies has let go since."""
    evicted: set[str] = set()
    for number, one in enumerate(readers):
        for two in readers[number + 1 :]:
            if one.dataset_id != two.dataset_id:
                continue
            parted = find_divergence(one.log, two.log)
            common = min(one.snapshot.number, two.snapshot.number)
            if parted is not None:
                common = min(common, parted.number - 1)
            if common < 0:
                continue
            with DatasetReader.open(one.path, snapshot=common) as past:
                ids = set(past.table["episode_id"].to_pylist())
            live = [set(reader.table["episode_id"].to_pylist()) for reader in (one, two)]
            evicted |= ids - (live[0] & live[1])
    return evicted


def _check_fits(one: DatasetReader, two: DatasetReader) -> None:
    first, second = one.schema, two.schema
    infos = {leaf.path: leaf for leaf in first.info_leaves}
    is_same_info = all(infos.get(leaf.path, leaf) == leaf for leaf in second.info_leaves)
    if (
        first.observation_space != second.observation_space
        or first.action_space != second.action_space
        or first.tasks[0].vocabulary != second.tasks[0].vocabulary
        or not is_same_info
    ):
        raise DatasetError(
            f"{two.path}: it holds {second.tasks[0].name} {dict(second.tasks[0].kwargs)}, whose "
            f"spaces, goals or infos differ from those of {one.path} ({first.tasks[0].name} "
            f"{dict(first.tasks[0].kwargs)}). Keep them apart; training mixes several datasets."
        )


def _check_same(one: DatasetReader, one_row: int, two: DatasetReader, two_row: int) -> None:
    """Refuse two different episodes of one id."""
    records = one.record(one_row), two.record(two_row)
    names = [
        field.name
        for field in fields(records[0])
        if field.name != "source_dataset_id"  # a copy may refer to a source of its own
        and getattr(records[0], field.name) != getattr(records[1], field.name)
    ]
    if names:
        raise DatasetError(
            f"{two.path}: episode {records[0].episode_id} has another {names[0]} than in "
            f"{one.path}. Find out which is damaged with `retold audit`."
        )

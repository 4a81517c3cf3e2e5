"""`retold split`: two new datasets, of which one trains and the other tests."""

import hashlib
from dataclasses import dataclass

from retold.dataset.derive import Selection, refuse_existing, remove_dataset, write_dataset
from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import SourceFlag
from retold.schemas.errors import DatasetError, UsageError


@dataclass(frozen=True, kw_only=True)
class SplitConfig(SourceFlag):
    """What `retold split` is asked."""

    dataset: DatasetPath
    """Dataset to split, or a snapshot (`DATASET@12`). It is never written to."""
    train: DatasetPath
    """Dataset to make of most episodes; must not exist."""
    test: DatasetPath
    """Dataset to make of the others; must not exist."""
    share: float = 0.1
    """Share of source episodes whose episodes go to TEST."""
    seed: int = 0
    """Another seed splits otherwise; the same one splits raw and retold datasets alike."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"--share is {self.share}, but must lie between 0 and 1.")
        if self.train.resolve() == self.test.resolve():
            raise UsageError(f"{self.test}: TRAIN and TEST are the same path. Give two.")


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """What went where."""

    train: str
    test: str
    train_episodes: int
    test_episodes: int


def split(config: SplitConfig) -> SplitResult:
    """Copy each episode into one of two new datasets, by the hash of the episode it was made from.

    All variants of an episode go where it goes itself, also those of another dataset split alike.

    Raises:
        DatasetError: one side would be empty, or an output exists.
    """
    refuse_existing(config.train)
    refuse_existing(config.test)
    with DatasetReader.open(config.dataset, sources=config.moved(config.dataset)) as reader:
        is_test = [
            is_held_out(find_root(reader, row), config.share, config.seed)
            for row in range(len(reader))
        ]
        rows = {side: tuple(r for r, held in enumerate(is_test) if held == side) for side in (0, 1)}
        for side, name in enumerate(("TRAIN", "TEST")):
            if not rows[side]:
                raise DatasetError(
                    f"{config.dataset}: no episode of {len(reader)} would go to {name}. Give "
                    f"another --share or --seed."
                )
        details = {"share": config.share, "seed": config.seed}
        for side, output in enumerate((config.train, config.test)):
            try:
                write_dataset(
                    output,
                    [Selection(reader, rows[side])],
                    operation="split",
                    details={**details, "side": ("train", "test")[side]},
                )
            except BaseException:
                if side:  # one half of a split is no use, and we made it just now
                    remove_dataset(config.train)
                raise
    return SplitResult(
        train=str(config.train),
        test=str(config.test),
        train_episodes=len(rows[0]),
        test_episodes=len(rows[1]),
    )


def find_root(reader: DatasetReader, row: int) -> str:
    """The id of the collected episode that an episode was, perhaps over several steps, made from."""
    record = reader.record(row)
    while record.source_episode_id is not None:
        if record.source_dataset_id is None:  # written out: the lineage is all there is
            return record.source_episode_id
        reader = reader.source_reader(record.source_dataset_id)
        record = reader.record(reader.find(record.source_episode_id))
    return record.episode_id


def is_held_out(episode_id: str, share: float, seed: int) -> bool:
    """Whether a source episode belongs to the test side."""
    digest = hashlib.sha256(f"retold\0split\0{seed}\0{episode_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64

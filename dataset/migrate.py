"""`retold migrate`: datasets of older format versions, written anew."""

from dataclasses import dataclass
from pathlib import Path

from retold.dataset.derive import refuse_existing
from retold.dataset.paths import DatasetPath
from retold.dataset.snapshot_names import open_log_to_write
from retold.schemas.errors import DatasetError
from retold.schemas.manifest import FORMAT_VERSION


@dataclass(frozen=True, kw_only=True)
class MigrateConfig:
    """What `retold migrate` is asked."""

    old: DatasetPath
    """Dataset of an older format version. It is never written to."""
    new: Path
    """Dataset to make in the newest version, if the old one is not of it; must not exist."""


@dataclass(frozen=True, kw_only=True)
class MigrateResult:
    """What was done."""

    old: str
    format_version: int
    """Of the old dataset."""
    made: str | None
    """The new dataset; none where there is nothing to do."""

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.old}: its format version is {self.format_version}, the newest. There is nothing "
            f"to do, and nothing was made; use it as it is."
        )


def migrate(config: MigrateConfig) -> MigrateResult:
    """Nothing, for now: version 1 is the only one, and a dataset of it needs no other form.

    Nothing is copied either, so that no second dataset of the same id comes about.

    Raises:
        FormatError: the dataset's version is newer than this Retold, or it is damaged.
        DatasetError: the new path exists, or is the old one.
    """
    if config.new.resolve() == config.old.resolve():
        raise DatasetError(f"{config.new}: OLD and NEW are the same path. Give another NEW.")
    open_log_to_write(config.old).head()
    refuse_existing(config.new)
    return MigrateResult(old=str(config.old), format_version=FORMAT_VERSION, made=None)

"""`retold replay`: play a stored episode again, compare it, and make a video of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retold.cli.printing import format_fields
from retold.dataset.paths import DatasetPath
from retold.dataset.sources import SourceFlag
from retold.schemas.errors import DatasetError, UsageError

if TYPE_CHECKING:
    from retold.collect.replay import Difference


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(SourceFlag):
    """What `retold replay` is asked."""

    dataset: DatasetPath
    """Dataset to read, or a snapshot (`DATASET@12`). It is never written to."""
    episode: str
    """Id of an episode or variant, the id's beginning, or a row number."""
    video: Path | None = None
    """File to draw the replay into: .gif or .mp4, instruction and progress drawn in."""
    frames_per_second: float = 10.0
    """Steps of the episode in a second of the video."""

    def __post_init__(self) -> None:
        if not 0 < self.frames_per_second <= 1000:
            raise UsageError(
                f"--frames-per-second is {self.frames_per_second}, but lies between 0 and 1000."
            )


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Whether the replay equals what is stored."""

    episode: str
    task: str
    seed: int
    steps: int
    """Transitions that were to be compared."""
    difference: "Difference | None"
    """The first one; None if every observation, reward, flag and goal event is equal."""
    versions: str
    """Of the simulator's packages, then and now where they differ."""
    video: str | None

    def describe(self) -> str:
        """Facts, and the verdict."""
        facts: dict[str, Any] = {
            name: getattr(self, name) for name in ("episode", "task", "seed", "steps", "versions")
        }
        if self.video:
            facts["video"] = self.video
        if self.difference is None:
            verdict = "equal: every observation, reward, flag and goal event"
        else:
            verdict = f"different: {self.difference}"
        return format_fields({**facts, "replay": verdict})

    @property
    def exit_status(self) -> int:
        """1 if the replay differs, otherwise 0."""
        return int(self.difference is not None)


def replay(config: ReplayConfig) -> ReplayResult:
    """The episode played again.

    Raises:
        DatasetError: there is no such episode, or nothing to replay it from.
        UsageError: the video cannot be written.
    """
    from retold.collect.replay import (
        compare_versions,
        find_difference,
        find_replayable,
        find_versions,
    )
    from retold.collect.video import check_video, write_video
    from retold.dataset.reader import DatasetReader

    if config.video is not None:
        check_video(config.video)
    with DatasetReader.open(config.dataset, sources=config.moved(config.dataset)) as reader:
        row = reader.find(config.episode)
        episode = find_replayable(reader, row)
        if episode is None or episode.record.seed is None:
            raise DatasetError(
                f"{config.dataset}: episode {config.episode}: it holds no seed to replay it from "
                f"(it was imported, written out, or shows another goal). Replay one that was "
                f"collected."
            )
        task = reader.array_schema(row).tasks[episode.record.task]
        if task.is_imported:
            raise DatasetError(
                f"{config.dataset}: its episodes were imported, and there is no task to replay them "
                f"in. Replay episodes that were collected."
            )
        versions = find_versions(reader, episode)
    difference = find_difference(episode, task)
    if config.video is not None:
        write_video(config.video, episode, task, config.frames_per_second)
    return ReplayResult(
        episode=episode.record.episode_id,
        task=task.name,
        seed=episode.record.seed,
        steps=episode.length,
        difference=difference,
        versions=compare_versions(versions, task.name),
        video=None if config.video is None else str(config.video),
    )

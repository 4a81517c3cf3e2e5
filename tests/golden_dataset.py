"""Writes the golden fixtures: `python tests/golden_dataset.py FOLDER`. Fixtures are added, never edited."""

import json
import sys
from pathlib import Path
from typing import Any

from retold.collect.command import CollectConfig, collect
from retold.dataset.reader import DatasetReader
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.canonical import sha256_hex
from retold.schemas.episode import Episode


def describe(episode: Episode) -> dict[str, Any]:
    """Everything a reader must find in an episode: its row, and a hash of each array."""
    arrays = {**episode.observation, **episode.action}
    for name in ("reward", "terminated", "truncated", "environment_terminated", "reset"):
        arrays[name] = getattr(episode, name)
    arrays["events/t"], arrays["events/goal"] = episode.event_step, episode.event_goal
    return {
        "record": vars(episode.record),
        "arrays": {
            name: [str(array.dtype), list(array.shape), sha256_hex(array.tobytes())]
            for name, array in sorted(arrays.items())
        },
    }


def read_all(path: Path) -> list[dict[str, Any]]:
    """Every live episode of a dataset, as JSON gives it back."""
    with DatasetReader.open(path) as reader:
        found = [describe(reader.read_episode(row)) for row in range(len(reader))]
    plain: list[dict[str, Any]] = json.loads(json.dumps(found))
    return plain


def main(folder: Path) -> None:
    """Two raw shards and their variants, with what a reader must find in them."""
    for first in (0, 2):
        collect(
            CollectConfig(
                task="maze",
                task_args={"size": 7, "limit": 30},
                dataset=folder / "raw",
                first=first,
                episodes=2,
            )
        )
    relabel(RelabelConfig(source=folder / "raw", target=folder / "retold", workers=0))
    expected = {name: read_all(folder / name) for name in ("raw", "retold")}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

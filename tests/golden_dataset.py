"""Writes the golden fixtures: `python tests/golden_dataset.py main|imported FOLDER`.

Fixtures are added, never edited.
"""

import json
import sys
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from minari.dataset.minari_storage import MinariStorage
from minari_datasets import SPACES, Infos, make_buffer, no_infos, some_infos
from numpy.typing import NDArray

from retold.collect.command import CollectConfig, collect
from retold.dataset.import_command import ImportConfig, import_dataset
from retold.dataset.reader import DatasetReader
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.canonical import sha256_hex
from retold.schemas.episode import Episode, EpisodeRecord


def describe(episode: Episode) -> dict[str, Any]:
    """Everything a reader must find in an episode: its row, and a hash of each array."""
    arrays = {**episode.observation, **episode.action}
    for name in ("reward", "terminated", "truncated", "environment_terminated", "reset"):
        arrays[name] = getattr(episode, name)
    arrays["events/t"], arrays["events/goal"] = episode.event_step, episode.event_goal
    arrays |= episode.info
    arrays |= {f"{path}/present": mask for path, mask in episode.info_present.items()}
    return {
        "record": _told(episode.record),
        "arrays": {
            name: [str(array.dtype), list(array.shape), sha256_hex(content(array))]
            for name, array in sorted(arrays.items())
        },
    }


def content(array: NDArray[Any]) -> bytes:
    """The bytes of an array; of text, its UTF-8 with a zero byte behind each row."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(text.encode() + b"\0" for text in array)


def read_all(path: Path) -> list[dict[str, Any]]:
    """Every live episode of a dataset, as JSON gives it back."""
    with DatasetReader.open(path) as reader:
        found = [describe(reader.read_episode(row)) for row in range(len(reader))]
    plain: list[dict[str, Any]] = json.loads(json.dumps(found))
    return plain


def make_imported(folder: Path) -> None:
    """An imported dataset of nested spaces, text, infos and odd flags."""
    rng = np.random.default_rng(0)
    folder = folder.resolve()
    with TemporaryDirectory() as temporary, chdir(temporary):  # the log names the source
        observation_space, action_space = SPACES["nested"]
        source = Path("source")
        source.mkdir()
        storage = MinariStorage.new(source.resolve() / "data", observation_space, action_space)
        storage.update_metadata({"dataset_id": "golden-v0", "minari_version": "0.5.3"})
        kinds: list[tuple[int, int | None, Infos]] = [(3, 0, some_infos), (1, None, no_infos)]
        storage.update_episodes(
            make_buffer(*SPACES["nested"], length=length, rng=rng, seed=seed, infos=infos)
            for length, seed, infos in kinds
        )
        both = make_buffer(*SPACES["nested"], length=2, rng=rng, terminated=True)
        storage.update_episodes([replace(both, truncations=both.terminations)])
        import_dataset(ImportConfig(format="minari", source=source, dataset=folder / "imported"))
    expected = read_all(folder / "imported")
    path = folder / "expected_imported.json"
    path.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


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


def _told(record: EpisodeRecord) -> dict[str, Any]:
    """The row as it was when the fixtures were made: a column added since is told where it is set."""
    values = dict(vars(record))
    if values["goal_row"] is None:
        del values["goal_row"]
    return values


if __name__ == "__main__":
    {"main": main, "imported": make_imported}[sys.argv[1]](Path(sys.argv[2]))

"""Tables of strangers, read by a mapping of their columns: step by step or episode by episode."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunRetold
from hub_state import Hub
from made_up_tables import EPISODES, STEPS, bring, episodes, steps, write_mapping
from minari_datasets import SPACES, make_dataset

from retold.dataset import as_minari
from retold.dataset.audit import audit_structure
from retold.dataset.export_command import ExportConfig, export_dataset
from retold.dataset.import_command import ImportConfig, import_dataset
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import BoxSpace, DictSpace, DiscreteSpace


def test_without_next_observations_the_last_transition_is_left_out(tmp_path: Path) -> None:
    result = bring(tmp_path, steps())
    assert (result.episodes, result.steps) == (2, 3)
    assert (result.dropped_steps, result.dropped_episodes) == (2, 1)
    assert result.left_out == ("next", "colour")
    assert audit_structure(tmp_path / "d") == []
    with DatasetReader.open(tmp_path / "d") as reader:
        assert reader.schema.action_space == DiscreteSpace(3)
        assert reader.schema.observation_space == BoxSpace(
            (2,), "float64", float("-inf"), float("inf")
        )
        assert reader.schema.tasks[0].name == "t" and reader.schema.tasks[0].is_imported
        episode = reader.read_episode(0)
        assert episode.observation["observation"].tolist() == [[0, -1], [1, -1], [2, -1]]
        assert episode.truncated.tolist() == [False, True]
    assert bring(tmp_path, None).skipped == 2, "the same again adds nothing"
    assert bring(tmp_path, None, info={"hue": "colour"}).episodes == 2, "another mapping is another"


def test_next_observations_keep_the_last_transition(tmp_path: Path) -> None:
    result = bring(
        tmp_path, steps(), next_observation="next", info={"hue": "colour"}, task="Walk-v1"
    )
    assert (result.episodes, result.steps, result.dropped_steps) == (3, 6, 0)
    with DatasetReader.open(tmp_path / "d") as reader:
        assert reader.table["terminated"].to_pylist() == [True, False, True]
        episode = reader.read_episode(1)
        assert episode.observation["observation"].tolist() == [[3, -1], [4, -1], [8, -1]]
        assert episode.info["info/hue"].tolist() == ["red", "red"]
        assert reader.schema.tasks[0].name == "Walk-v1"


def test_a_row_without_reward_is_the_final_observation(tmp_path: Path) -> None:
    table = steps(
        r=[0.5, 0.25, None, 1.0, None, None],
        act=[0, 2, None, 0, None, None],
        done=[False, True, None, False, None, None],
    )
    result = bring(tmp_path, table)
    assert (result.episodes, result.steps) == (2, 3)
    assert (result.dropped_steps, result.dropped_episodes) == (0, 1)


def test_rows_of_an_episode_are_put_in_order(tmp_path: Path) -> None:
    order = [2, 0, 1, 4, 3, 5]
    bring(tmp_path, steps().take(order), next_observation="next")
    other = tmp_path / "other"
    other.mkdir()
    bring(other, steps(), next_observation="next")
    with DatasetReader.open(tmp_path / "d") as one, DatasetReader.open(other / "d") as two:
        for row in range(3):
            assert one.read_episode(row).reward.tolist() == two.read_episode(row).reward.tolist()


def test_flags_part_episodes_where_no_column_numbers_them(tmp_path: Path) -> None:
    result = bring(
        tmp_path,
        steps(t=None, cut=[False, False, False, False, True, False]),
        episode=None,
        step=None,
        truncated="cut",
        next_observation="next",
    )
    assert (result.episodes, result.steps, result.jumps) == (3, 6, 0)
    other = tmp_path / "other"
    other.mkdir()
    result = bring(other, steps(), episode=None, step=None, next_observation="next")
    assert (result.episodes, result.steps, result.jumps) == (3, 6, 1), "as with D4RL"
    with DatasetReader.open(other / "d") as reader:
        assert reader.table["truncated"].to_pylist() == [False, True, False]


def test_a_row_may_be_an_episode_of_lists(tmp_path: Path) -> None:
    result = bring(tmp_path, episodes(), **EPISODES)
    assert (result.episodes, result.steps, result.dropped_steps) == (3, 6, 0)
    with DatasetReader.open(tmp_path / "d") as reader:
        assert reader.table["terminated"].to_pylist() == [False, True, False]
        assert reader.read_episode(0).observation["observation"].shape == (4, 2)


@pytest.mark.parametrize("column", ["seen", "did", "got", "won"])
def test_an_episode_without_a_list_is_incomplete(column: str, tmp_path: Path) -> None:
    table = episodes()
    rows = [None, *table[column].to_pylist()[1:]]
    table = table.set_column(table.column_names.index(column), column, pa.array(rows))
    with pytest.raises(DatasetError, match="row 0: "):
        bring(tmp_path, table, **EPISODES)
    result = bring(tmp_path, None, **EPISODES, incomplete="drop")
    assert (result.episodes, result.steps, result.dropped_episodes) == (2, 3, 1)


def test_an_episode_may_be_a_struct_of_lists_or_a_list_of_structs(tmp_path: Path) -> None:
    rows: dict[str, Any] = {
        "lists": {"seen": {"pose": [[1.0, 2.0], [3.0, 4.0]], "n": [1, 2]}},
        "structs": {"seen": [{"pose": [1.0, 2.0], "n": 1}, {"pose": [3.0, 4.0], "n": 2}]},
    }
    for name, row in rows.items():
        folder = tmp_path / name
        folder.mkdir()
        table = pa.Table.from_pylist([{**row, "did": [0], "got": [1.0], "won": True}])
        assert bring(folder, table, **EPISODES).steps == 1
        with DatasetReader.open(folder / "d") as reader:
            seen = reader.read_episode(0).observation
            assert seen["observation/pose"].tolist() == [[1, 2], [3, 4]]
            assert seen["observation/n"].tolist() == [1, 2]


def test_columns_make_vectors_and_structs_make_dicts(tmp_path: Path) -> None:
    table = steps(
        x=np.arange(6.0),
        y=np.arange(6.0) * 2,
        state=[{"pose": [1.0, 2.0], "gripper": {"open": True}} for _ in range(6)],
        **{"a.b": np.arange(6, dtype=np.int32)},
    )
    bring(
        tmp_path,
        table,
        observation={
            "xy": ["x", "y"],
            "all": ["x", "obs"],
            "pose": "state.pose",
            "gripper": "state.gripper",
            "n": "a.b",
        },
    )
    with DatasetReader.open(tmp_path / "d") as reader:
        space = reader.schema.observation_space
        assert isinstance(space, DictSpace)
        assert [key for key, _ in space.spaces] == ["xy", "all", "pose", "gripper", "n"]
        episode = reader.read_episode(0)
        assert episode.observation["observation/xy"].tolist() == [[0, 0], [1, 2], [2, 4]]
        assert episode.observation["observation/all"][1].tolist() == [1, 1, -1]
        assert episode.observation["observation/gripper/open"].tolist() == [True] * 3


def test_images_that_are_held_as_files_become_pixels(tmp_path: Path) -> None:
    from PIL import Image

    pictures = []
    for number in range(6):
        buffer = io.BytesIO()
        Image.fromarray(np.full((3, 4, 3), number, np.uint8)).save(buffer, "PNG")
        pictures.append({"bytes": buffer.getvalue(), "path": "/etc/passwd"})
    bring(tmp_path, steps(obs=pictures))
    with DatasetReader.open(tmp_path / "d") as reader:
        pixels = reader.read_episode(0).observation["observation"]
        assert pixels.shape == (3, 3, 4, 3) and pixels.dtype == np.uint8 and pixels[2].max() == 2
    elsewhere = [{"bytes": None, "path": "/etc/passwd"} for _ in pictures]
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(DatasetError, match="no row with a value"):
        bring(other, steps(obs=elsewhere))


@pytest.mark.parametrize("rows", ["steps", "episodes"])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_retold_exports_comes_back(
    name: str, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    make_dataset(name)
    source = Path(f"tests/{name}-v0")
    import_dataset(ImportConfig(format="minari", source=source, dataset=tmp_path / "a"))
    export_dataset(
        ExportConfig(
            format="parquet", dataset=tmp_path / "a", target=tmp_path / "t.parquet", rows=rows
        )
    )
    own = {n: n for n in ("observation", "action", "reward", "terminated", "truncated")}
    own |= {"episode": "episode_id", "step": "step"} if rows == "steps" else {}
    result = bring(tmp_path, None, **(dict.fromkeys(STEPS) | own))
    assert (result.episodes, result.steps, result.dropped_steps) == (4, 29, 0)
    assert audit_structure(tmp_path / "d") == []
    one, two = DatasetReader.open(tmp_path / "a"), DatasetReader.open(tmp_path / "d")
    with one, two:
        assert one.schema.observation_space == two.schema.observation_space
        assert one.schema.action_space == two.schema.action_space
        for row in range(4):
            first, second = one.read_episode(row), two.read_episode(row)
            for field in ("observation", "action"):
                mine, theirs = getattr(first, field), getattr(second, field)
                assert mine.keys() == theirs.keys()
                assert all(np.array_equal(mine[path], theirs[path]) for path in mine)
            for field in ("reward", "terminated", "truncated"):
                assert getattr(first, field).tolist() == getattr(second, field).tolist()
    assert as_minari(tmp_path / "d").total_steps == 29


def test_a_table_on_the_hub_is_imported(hub: Hub, tmp_path: Path, run_retold: RunRetold) -> None:
    repository = hub.make("datasets/me/table")
    buffer = io.BytesIO()
    pq.write_table(steps(), buffer)
    repository.put("data/train-00000.parquet", buffer.getvalue())
    repository.tags["v1"] = repository.head.oid
    repository.put("data/train-00000.parquet", b"something else")
    mapping = write_mapping(tmp_path, **STEPS, next_observation="next")
    line = ("import", "hf-dataset", "me/table@v1", tmp_path / "d", "--mapping", mapping, "--json")
    first = run_retold(*line)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["episodes"] == 3
    assert audit_structure(tmp_path / "d") == []
    repository.put("README.md", b"---\nlicense: mit\n---\nA card changes no row.")
    repository.tags["v1"] = repository.commit(
        {
            "data/train-00000.parquet": repository.find(repository.tags["v1"]).files[
                "data/train-00000.parquet"
            ]
        },
        (),
        "again",
    ).oid
    again = run_retold(*line)
    assert json.loads(again.stdout)["skipped"] == 3, again.stdout + again.stderr
    hub.make("datasets/me/broken").put("data/train-00000.parquet", b"something else")
    for source, words in (
        ("me/broken", "me/broken"),
        ("me/nothing", "no such repository"),
        ("x.parquet", "no such file"),
    ):
        done = run_retold("import", "hf-dataset", source, tmp_path / "e", "--mapping", mapping)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1 and not (tmp_path / "e").exists(), done.stderr


MEASURED = """
import resource, sys
from pathlib import Path
from retold.dataset.import_command import ImportConfig, import_dataset

folder = Path(sys.argv[1])
config = ImportConfig(
    format="hf-dataset",
    source=folder / "t.parquet",
    dataset=folder / "d",
    mapping=folder / "mapping.toml",
)
print(import_dataset(config).steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
@pytest.mark.parametrize("rows", ["steps", "episodes"])
def test_a_table_need_not_fit_the_memory(tmp_path: Path, rows: str) -> None:
    peaks = []
    for count in (160, 640):
        folder = tmp_path / str(count)
        folder.mkdir()
        write_long_table(folder / "t.parquet", count, is_steps=rows == "steps")
        own = {n: n for n in ("observation", "action", "reward")}
        own |= {"episode": "episode"} if rows == "steps" else {}
        write_mapping(folder, **own, terminated=False)
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        done_steps, peak = map(int, done.stdout.split())
        assert done_steps == 99 * count
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 100_000, f"kB, for 128 and for 512 MB of observations: {peaks}"


def write_long_table(path: Path, episodes: int, *, is_steps: bool) -> None:
    """One row group of 100 steps an episode, 8 kB of observation a step."""
    writer: pq.ParquetWriter | None = None
    frames = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(100 * 1000)), 1000)
    for number in range(episodes):
        columns: dict[str, Any] = {
            "observation": frames,
            "action": pa.array(np.zeros(100, np.int64)),
            "reward": pa.array(np.zeros(100)),
        }
        if is_steps:
            columns["episode"] = pa.array(np.full(100, number))
        else:
            offsets = pa.array([0, 100], pa.int32())
            columns = {n: pa.ListArray.from_arrays(offsets, c) for n, c in columns.items()}
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()

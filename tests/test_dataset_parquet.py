"""Parquet tables: for SQL engines and `datasets`, and back again."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunRetold
from minari_datasets import SPACES, assert_same, assert_same_datasets, make_dataset

from retold.dataset import as_minari
from retold.dataset.audit import audit_structure
from retold.dataset.export_command import ExportConfig, export_dataset
from retold.dataset.import_command import ImportConfig, ImportResult, import_dataset
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import BoxSpace, DiscreteSpace


def import_parquet(source: Path, dataset: Path) -> ImportResult:
    return import_dataset(ImportConfig(format="parquet", source=source, dataset=dataset))


@pytest.mark.parametrize("rows", ["steps", "episodes"])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_parquet_comes_back_bit_for_bit(
    name: str, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    original = make_dataset(name)
    source = Path(f"tests/{name}-v0")
    import_dataset(ImportConfig(format="minari", source=source, dataset=tmp_path / "a"))
    config = ExportConfig(
        format="parquet", dataset=tmp_path / "a", target=tmp_path / "p", rows=rows
    )
    assert export_dataset(config).left_out == ()
    result = import_parquet(tmp_path / "p", tmp_path / "b")
    assert (result.episodes, result.steps, result.dropped_steps) == (4, 29, 0)
    assert audit_structure(tmp_path / "b") == []
    assert_same_datasets(original, as_minari(tmp_path / "b"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, run_retold: RunRetold) -> Path:
    folder = tmp_path_factory.mktemp("parquet")
    for task, count in (("maze", "5"), ("crafter", "2")):
        run_retold("collect", task, f"{task}/raw", "--episodes", count, cwd=folder)
        for rows in ("steps", "episodes"):
            target = f"{task}/{rows}"
            output = run_retold(
                "export", "parquet", f"{task}/raw", target, "--rows", rows, cwd=folder
            )
            assert output.returncode == 0, output.stderr
    return folder


def test_duckdb_reads_steps_and_episodes(exported: Path) -> None:
    with DatasetReader.open(exported / "maze" / "raw") as reader:
        returns = reader.table["episode_return"].to_pylist()
        lengths = reader.lengths.tolist()
        events = sum(len(reader.read_events(row)[0]) for row in range(len(reader)))
    table = f"read_parquet('{exported}/maze/steps/*.parquet')"
    found = duckdb.sql(
        f"SELECT sum(reward), count(reward), count(*), sum(len(events)) FROM {table} "
        f"GROUP BY episode ORDER BY episode"
    ).fetchall()
    assert [row[:3] for row in found] == [
        (total, length, length + 1) for total, length in zip(returns, lengths, strict=True)
    ]
    assert sum(row[3] for row in found) == events
    table = f"read_parquet('{exported}/maze/episodes/*.parquet')"
    found = duckdb.sql(
        f"SELECT length, len(observation), list_sum(reward) FROM {table} ORDER BY episode"
    ).fetchall()
    assert found == [
        (length, length + 1, total) for total, length in zip(returns, lengths, strict=True)
    ]


@pytest.mark.parametrize("task", ["maze", "crafter"])
@pytest.mark.parametrize("rows", ["steps", "episodes"])
def test_datasets_loads_the_folder(
    task: str, rows: str, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = str(exported / task / rows)
    import datasets

    loaded = datasets.load_dataset(folder, split="train", cache_dir=str(tmp_path))
    with DatasetReader.open(exported / task / "raw") as reader:
        episode = reader.read_episode(1)
        first = episode.observation[reader.schema.observation_leaves[0].path]
        count = len(reader) if rows == "episodes" else int((reader.lengths + 1).sum())
        start = 1 if rows == "episodes" else int(reader.lengths[0]) + 1
    assert len(loaded) == count
    row = loaded[start]
    if rows == "steps":
        found = row["observation"]
    elif isinstance(row["observation"], dict):
        found = {name: values[0] for name, values in row["observation"].items()}
    else:
        found = row["observation"][0]
    leaf = next(iter(found.values())) if isinstance(found, dict) else found
    assert np.array_equal(np.asarray(leaf), first[0])


def test_a_collected_dataset_comes_back(exported: Path, tmp_path: Path) -> None:
    for rows in ("steps", "episodes"):
        result = import_parquet(exported / "maze" / rows, tmp_path / rows)
        assert "goal events" in result.left_out
        one, two = as_minari(exported / "maze" / "raw"), as_minari(tmp_path / rows)
        for first, second in zip(one, two, strict=True):
            assert_same(vars(first), vars(second))


def step_table(**changes: Any) -> pa.Table:
    """What somebody else may write: lists of variable type, no final observation."""
    columns: dict[str, Any] = {
        "episode_id": ["a"] * 3 + ["b"] * 2 + ["c"],
        "observation": [[float(number), -1.0] for number in range(6)],
        "action": [0, 2, 1, 0, 0, 2],
        "reward": [0.5, 0.25, 0.1, 1.0, 2.0, 3.0],
        "terminated": [False, False, True, False, False, True],
        "colour": ["red"] * 6,
    }
    columns |= changes
    return pa.table({name: rows for name, rows in columns.items() if rows is not None})


def test_somebody_elses_table_is_imported(tmp_path: Path) -> None:
    pq.write_table(step_table(), tmp_path / "t.parquet")
    result = import_parquet(tmp_path / "t.parquet", tmp_path / "d")
    assert (result.episodes, result.steps) == (2, 3)
    assert (result.dropped_steps, result.dropped_episodes) == (2, 1)
    assert result.left_out == ("colour",)
    with DatasetReader.open(tmp_path / "d") as reader:
        assert reader.schema.action_space == DiscreteSpace(3)
        assert isinstance(reader.schema.observation_space, BoxSpace)
        episode = reader.read_episode(0)
        assert episode.observation["observation"].tolist() == [[0, -1], [1, -1], [2, -1]]
        assert episode.truncated.tolist() == [False, True]


def test_a_final_observation_has_a_row_without_reward(tmp_path: Path) -> None:
    table = step_table(
        reward=[0.5, 0.25, None, 1.0, None, 3.0],
        action=[0, 2, None, 0, None, 2],
        terminated=[False, True, None, False, None, True],
    )
    pq.write_table(table, tmp_path / "t.parquet")
    result = import_parquet(tmp_path / "t.parquet", tmp_path / "d")
    assert (result.episodes, result.steps, result.dropped_steps) == (2, 3, 0)
    with DatasetReader.open(tmp_path / "d") as reader:
        assert reader.table["terminated"].to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward": None}, "column 'reward' is missing"),
        ({"episode_id": None}, "'episode_id' or 'terminated' is missing"),
        ({"reward": [0.5, None, 0.1, 1.0, 2.0, 3.0]}, "the reward of step 1 is null"),
        ({"reward": [0.5, float("nan"), 0.1, 1.0, 2.0, 3.0]}, "'reward' is nan at step 1"),
        ({"terminated": [True, False, True, False, False, True]}, "set at step 0, before the last"),
        ({"terminated": [0.0, float("nan"), 1.0, 0.0, 0.0, 1.0]}, "'terminated' is nan at step 1"),
        ({"observation": [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0], [1.0]]}, "not one length"),
    ],
)
def test_a_table_that_is_off_is_one_sentence(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    pq.write_table(step_table(**changes), tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match=words) as caught:
        import_parquet(tmp_path / "t.parquet", tmp_path / "d")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and nothing else PAR1"])
def test_a_file_that_is_no_parquet_is_one_line(
    content: bytes | None, tmp_path: Path, run_retold: RunRetold
) -> None:
    source = tmp_path / "t.parquet"
    if content is not None:
        source.write_bytes(content)
    output = run_retold("import", "parquet", source, tmp_path / "d")
    assert output.returncode == 1 and output.stderr.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path) -> None:
    pq.write_table(step_table(), tmp_path / "t.parquet")
    original = (tmp_path / "t.parquet").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(40):
        content = bytearray(original)
        content[int(rng.integers(len(content)))] ^= 0xFF
        (tmp_path / f"{number}.parquet").write_bytes(content)
        try:
            import_parquet(tmp_path / f"{number}.parquet", tmp_path / f"d{number}")
        except DatasetError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 10

"""Flat HDF5 files and demonstrations: in, out, and what is said of those that are off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from conftest import RunRetold
from hypothesis import given, settings
from hypothesis import strategies as st
from minari_datasets import SPACES, assert_same, file_contents, make_dataset

from retold.dataset import as_minari
from retold.dataset.audit import audit_structure
from retold.dataset.export_command import ExportConfig, export_dataset
from retold.dataset.import_command import ImportConfig, ImportResult, import_dataset
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError

TEXT = h5py.string_dtype()
Write = Callable[[h5py.File, np.random.Generator], None]


def import_hdf5(source: Path, dataset: Path) -> ImportResult:
    return import_dataset(ImportConfig(format="hdf5", source=source, dataset=dataset))


def round_trip(source: Path, tmp_path: Path) -> ImportResult:
    """Out and in once more: the files hold the same, and so do the datasets."""
    result = import_hdf5(source, tmp_path / "d")
    assert audit_structure(tmp_path / "d") == []
    export_dataset(ExportConfig(format="hdf5", dataset=tmp_path / "d", target=tmp_path / "out.h5"))
    assert_same(file_contents(source), file_contents(tmp_path / "out.h5"))
    return result


def flat_columns(
    lengths: list[int], ends: list[str], rng: np.random.Generator
) -> tuple[dict[str, Any], Any]:
    """Columns of episodes, and the observations after each transition."""
    rows = sum(lengths)
    observation = rng.standard_normal((rows + len(lengths), 3)).astype(np.float32)
    observation[0, 0] = np.nan
    starts = np.cumsum([0, *(length + 1 for length in lengths)])[:-1]
    keep = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    columns: dict[str, Any] = {
        "observations": observation[keep],
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.standard_normal(rows),
        "infos/qpos": rng.standard_normal((rows, 4)),
        "infos/action_log_probs": rng.standard_normal(rows).astype(np.float32),
        "goal": rng.standard_normal((rows, 2)),
    }
    stops = np.cumsum(lengths) - 1
    for name in ("terminals", "timeouts"):
        columns[name] = np.zeros(rows, np.uint8 if name == "terminals" else np.bool_)
        columns[name][[stop for stop, end in zip(stops, ends, strict=True) if end == name]] = 1
    return columns, observation[keep + 1]


def write_columns(path: Path, columns: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, rows in columns.items():
            file[name] = rows
        file.attrs["version"] = 3
        file["metadata/algorithm"] = "SAC"
        file["metadata/nonlinearity"] = np.arange(4.0)
    return path


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    draw=st.integers(0, 1000),
    has_next=st.booleans(),
    is_cut=st.booleans(),
)
def test_flat_columns_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    draw: int,
    has_next: bool,
    is_cut: bool,
) -> None:
    """Without next observations, an episode of one row has no transition and cannot come back."""
    folder = tmp_path_factory.mktemp("flat")
    rng = np.random.default_rng(draw)
    lengths = lengths if has_next else [length + 1 for length in lengths]
    ends = list(rng.choice(["terminals", "timeouts"], len(lengths)))
    columns, following = flat_columns(lengths, [*ends[:-1], "cut"] if is_cut else ends, rng)
    if has_next:
        columns["next_observations"] = following
    source = write_columns(folder / "flat.hdf5", columns)
    result = round_trip(source, folder)
    assert result.episodes == len(lengths)
    dropped = 0 if has_next else len(lengths)
    assert result.dropped_steps == dropped
    assert result.steps == sum(lengths) - dropped


def test_the_true_last_observation_is_kept_and_none_is_invented(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns, following = flat_columns([3, 1, 4], ["terminals", "timeouts", "terminals"], rng)
    without = write_columns(tmp_path / "without.hdf5", columns)
    with_next = write_columns(tmp_path / "with.hdf5", {**columns, "next_observations": following})
    full = import_hdf5(with_next, tmp_path / "full")
    assert (full.episodes, full.steps, full.dropped_steps, full.dropped_episodes) == (3, 8, 0, 0)
    with DatasetReader.open(tmp_path / "full") as reader:
        episode = reader.read_episode(0)
        assert_same(episode.observation["observation"][-1], following[2])
        assert reader.table["terminated"].to_pylist() == [True, False, True]
    short = import_hdf5(without, tmp_path / "short")
    assert (short.episodes, short.steps, short.dropped_steps, short.dropped_episodes) == (
        2,
        5,
        2,
        1,
    )
    with DatasetReader.open(tmp_path / "short") as reader:
        episode = reader.read_episode(1)
        assert_same(episode.observation["observation"], columns["observations"][4:])
        assert reader.table["terminated"].to_pylist() == [False, False]
        assert reader.table["truncated"].to_pylist() == [True, True]


def test_rows_that_do_not_follow_each_other_are_no_episode(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns, following = flat_columns([3, 4], ["", ""], rng)
    del columns["timeouts"]
    source = write_columns(tmp_path / "f.hdf5", {**columns, "next_observations": following})
    result = round_trip(source, tmp_path)
    assert (result.episodes, result.jumps) == (2, 1)


@pytest.mark.parametrize("dtype", [">f4", "<f2", "int8", ">i8", "bool"])
def test_columns_of_any_dtype_come_back(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns, following = flat_columns([3, 2], ["terminals", "timeouts"], rng)
    columns["observations"] = np.nan_to_num(columns["observations"]).astype(dtype)
    columns["next_observations"] = following.astype(dtype)
    columns["rewards"] = columns["rewards"].astype(">f8")[:, None]
    columns["terminals"] = columns["terminals"].astype(np.float32)
    columns["actions"] = np.array([3, 0, 2, 2, 1], np.uint8)
    source = write_columns(tmp_path / "f.hdf5", columns)
    round_trip(source, tmp_path)


def test_a_column_that_does_not_fit_can_be_left_out(tmp_path: Path) -> None:
    columns, _ = flat_columns([3, 2], ["terminals", "timeouts"], np.random.default_rng(0))
    source = write_columns(tmp_path / "f.hdf5", {**columns, "infos/odd": np.zeros(4)})
    with pytest.raises(DatasetError, match="--skip info/odd"):
        import_hdf5(source, tmp_path / "d")
    config = ImportConfig(
        format="hdf5", source=source, dataset=tmp_path / "d", skip=("info/odd", "column/goal")
    )
    assert import_dataset(config).episodes == 2
    with DatasetReader.open(tmp_path / "d") as reader:
        paths = {leaf.path for leaf in reader.schema.info_leaves}
    assert "info/qpos" in paths and not paths & {"info/odd", "column/goal"}


def fill_demos(file: h5py.File, rng: np.random.Generator, *, has_next: bool = True) -> None:
    for number, length in enumerate([4, 1 + (not has_next), 11, 2]):
        demo = file.create_group(f"data/demo_{number}")
        names = np.array([f"ä{n}" for n in range(length + 1)], object)
        observation = {
            "frame": rng.integers(0, 256, (length + 1, 8, 8, 3)).astype(np.uint8),
            "joints": rng.standard_normal((length + 1, 7)),
            "pair/_index_0": rng.integers(-3, 9, (length + 1, 2)).astype(np.int16),
            "pair/_index_1": rng.integers(0, 2, length + 1).astype(np.bool_),
            "name": names,
        }
        for key, rows in observation.items():
            dtype = TEXT if rows.dtype == object else None
            demo.create_dataset(f"obs/{key}", data=rows[:-1], dtype=dtype)
            if has_next:
                demo.create_dataset(f"next_obs/{key}", data=rows[1:], dtype=dtype)
        demo["actions"] = rng.uniform(-1, 1, (length, 7))
        demo["rewards"] = rng.integers(0, 2, length).astype(np.float64)
        demo["states"] = rng.standard_normal((length, 30))
        dones = np.zeros(length, np.int64)
        dones[-1] = number % 2
        dones[length // 2] |= number == 2
        demo["dones"] = dones
        demo.attrs["num_samples"] = length
        demo.attrs["model_file"] = "<mujoco/>"
    file["data"].attrs["total"] = 18
    file["data"].attrs["env_args"] = '{"env_name": "Lift"}'
    file["mask/train"] = np.array([b"demo_0", b"demo_2"])


@pytest.mark.parametrize("has_next", [True, False])
def test_demonstrations_come_back_bit_for_bit(has_next: bool, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        fill_demos(file, np.random.default_rng(0), has_next=has_next)
    result = round_trip(tmp_path / "demos.hdf5", tmp_path)
    assert (result.episodes, result.dropped_steps) == (4, 0 if has_next else 4)
    with DatasetReader.open(tmp_path / "d") as reader:
        if has_next:
            assert reader.table["terminated"].to_pylist() == [False, True, False, True]
        assert [leaf.path for leaf in reader.schema.observation_leaves] == [
            "observation/frame",
            "observation/joints",
            "observation/name",
            "observation/pair/0",
            "observation/pair/1",
        ]


@pytest.mark.parametrize("layout", ["d4rl", "robomimic"])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_dataset_goes_through_hdf5(
    name: str, layout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spaces, observations, actions, rewards and flags survive; the result says what does not."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    original = make_dataset(name)
    source = Path(f"tests/{name}-v0")
    import_dataset(ImportConfig(format="minari", source=source, dataset=tmp_path / "a"))
    config = ExportConfig(
        format="hdf5", dataset=tmp_path / "a", target=tmp_path / "a.h5", layout=layout
    )
    assert "infos of the environment's reset" in export_dataset(config).left_out
    import_hdf5(tmp_path / "a.h5", tmp_path / "b")
    view = as_minari(tmp_path / "b")
    assert view.observation_space == original.observation_space
    assert view.action_space == original.action_space
    for one, two in zip(original, view, strict=True):
        for field in ("observations", "actions", "rewards", "terminations", "truncations"):
            assert_same(getattr(one, field), getattr(two, field), field)
    if layout == "d4rl":  # a column of all episodes says where it has gaps
        with h5py.File(tmp_path / "a.h5") as file:
            assert file["infos/_qpos"][()].sum() == 21
    export_dataset(ExportConfig(format="hdf5", dataset=tmp_path / "b", target=tmp_path / "b.h5"))
    assert_same(file_contents(tmp_path / "a.h5"), file_contents(tmp_path / "b.h5"))


def test_an_hdf5_file_becomes_a_minari_dataset(tmp_path: Path) -> None:
    columns, following = flat_columns([3, 2], ["terminals", "timeouts"], np.random.default_rng(0))
    source = write_columns(tmp_path / "f.hdf5", {**columns, "next_observations": following})
    import_hdf5(source, tmp_path / "d")
    config = ExportConfig(
        format="minari", dataset=tmp_path / "d", target=tmp_path / "m", dataset_id="mine/flat-v3"
    )
    assert export_dataset(config).left_out == ("columns that are no infos",)
    dataset = minari.MinariDataset(tmp_path / "m" / "data")
    assert dataset.id == "mine/flat-v3"
    assert_same(
        dataset[1].observations, np.concatenate([columns["observations"][3:], following[4:]])
    )
    assert_same(dataset[1].infos["qpos"], columns["infos/qpos"][3:])
    assert len(as_minari(tmp_path / "d")) == 2


def drop(name: str) -> Write:
    def change(file: h5py.File, rng: np.random.Generator) -> None:
        del file[name]

    return change


def replace(name: str, rows: Any) -> Write:
    def change(file: h5py.File, rng: np.random.Generator) -> None:
        old = file[name][()]
        del file[name]
        file[name] = rows(old)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("rewards"), "'rewards' is missing"),
        (drop("terminals"), "'terminals' is missing"),
        (drop("observations"), "'observations' is missing"),
        (replace("actions", lambda old: old[:-1]), "has 7 rows, but 'actions' has 6|has 6 rows"),
        (replace("rewards", lambda old: old[:-2]), "'/rewards' has 5 rows, but 'actions' has 7"),
        (replace("terminals", lambda old: old * np.nan), "'/terminals' is nan at row 0"),
        (replace("timeouts", lambda old: old + 2), "'/timeouts' is 2 at row 0"),
        (replace("rewards", lambda old: old + np.inf), "'reward' is inf at step 0"),
        (replace("observations", lambda old: old.astype(complex)), "complex128"),
    ],
)
def test_a_broken_flat_file_is_one_sentence(change: Write, words: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns, _ = flat_columns([3, 4], ["terminals", "timeouts"], rng)
    source = write_columns(tmp_path / "f.hdf5", columns)
    with h5py.File(source, "a") as file:
        change(file, rng)
    with pytest.raises(DatasetError, match=words) as caught:
        import_hdf5(source, tmp_path / "d")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "there is no such file"), (b"no HDF5", "cannot be read"), (b"", "cannot be read")],
)
def test_a_file_that_is_no_hdf5_is_one_line(
    content: bytes | None, words: str, tmp_path: Path, run_retold: RunRetold
) -> None:
    source = tmp_path / "f.hdf5"
    if content is not None:
        source.write_bytes(content)
    output = run_retold("import", "hdf5", source, tmp_path / "d")
    assert output.returncode == 1 and output.stdout == ""
    assert words in output.stderr and output.stderr.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path) -> None:
    """Whatever byte of a file is wrong, importing works or says in one line that it does not."""
    columns, _ = flat_columns([3, 4], ["terminals", "timeouts"], np.random.default_rng(0))
    original = write_columns(tmp_path / "f.hdf5", columns).read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for number in range(25):
        content = bytearray(original)
        for place in rng.integers(0, min(len(content), 6000), 3):
            content[place] ^= 0xFF
        source = tmp_path / f"{number}.hdf5"
        source.write_bytes(content)
        try:
            import_hdf5(source, tmp_path / f"d{number}")
        except DatasetError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 2


def test_a_collected_dataset_comes_back_from_hdf5(run_retold: RunRetold, tmp_path: Path) -> None:
    run_retold("collect", "maze", "raw", "--episodes", "3", cwd=tmp_path)
    for layout in ("d4rl", "robomimic"):
        name = f"{layout}.hdf5"
        output = run_retold("export", "hdf5", "raw", name, "--layout", layout, cwd=tmp_path)
        assert output.returncode == 0, output.stderr
        assert run_retold("import", "hdf5", name, layout, cwd=tmp_path).returncode == 0
        assert run_retold("info", layout, cwd=tmp_path).returncode == 0
        assert run_retold("audit", layout, cwd=tmp_path).returncode == 0
        one, two = as_minari(tmp_path / "raw"), as_minari(tmp_path / layout)
        for first, second in zip(one, two, strict=True):
            assert_same(first.observations, second.observations)
            assert_same(first.rewards, second.rewards)

"""Minari datasets that are broken, imports that were killed or come twice, and exports onto something."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import RunRetold
from minari_datasets import assert_same_datasets, data_folder, import_minari, make_dataset

from retold.dataset import as_minari
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.schemas.errors import DatasetError


@pytest.fixture(autouse=True)
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def break_file(path: Path, how: str) -> None:
    main = path / "data" / "main_data.hdf5"
    if how == "garbage":
        main.write_bytes(b"no HDF5 at all")
    elif how == "cut":
        main.write_bytes(main.read_bytes()[:3000])
    elif how == "no metadata":
        (path / "data" / "metadata.json").unlink()
    elif how == "bad metadata":
        (path / "data" / "metadata.json").write_text("{")
    else:
        with h5py.File(main, "a") as file:
            episode = file["episode_2"]
            if how == "missing key":
                del episode["rewards"]
                return
            if how == "missing leaf":
                del episode["observations/achieved_goal"]
                return
            name = {"short": "actions", "final": "observations/observation"}.get(
                how, "terminations"
            )
            rows = episode[name][()]
            del episode[name]
            if how == "nan":
                rows = np.full(len(rows), np.nan)
            elif how == "early":
                rows[3] = True
            else:
                rows = rows[:-1]
            episode[name] = rows


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("garbage", "cannot be read as a Minari episode"),
        ("cut", "cannot be read as a Minari episode"),
        ("no metadata", "there is no Minari dataset here"),
        ("bad metadata", "cannot be read as Minari metadata"),
        ("missing key", "episode 2.*rewards"),
        ("missing leaf", "episode 2: 'observation/achieved_goal' is missing"),
        ("short", "episode 2: 'action' has 19 rows, but 20 are needed"),
        ("final", "'observation/observation' has 20 rows, but 21 are needed"),
        ("nan", "'terminated' is nan at step 0, neither true nor false"),
        ("early", "'terminated' is set at step 3, before the last"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_broken_source_is_one_sentence_and_leaves_nothing(
    how: str, words: str, tmp_path: Path, minari_root: Path, run_retold: RunRetold
) -> None:
    make_dataset("goal")
    source = data_folder(minari_root, "goal")
    break_file(source, how)
    output = run_retold("import", "minari", source, tmp_path / "d")
    assert output.returncode == 1 and output.stdout == ""
    assert output.stderr.count("\n") == 1 and "Traceback" not in output.stderr
    with pytest.raises(DatasetError, match=words):
        import_minari(source, tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_export_overwrites_nothing(tmp_path: Path, run_retold: RunRetold) -> None:
    make_dataset("text")
    import_minari("tests/text-v0", tmp_path / "d")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    for name in ("minari", "hdf5", "parquet"):
        output = run_retold("export", name, tmp_path / "d", tmp_path / "out")
        assert output.returncode == 1 and "overwrites nothing" in output.stderr
    assert (tmp_path / "out" / "mine").read_text() == "kept"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_infos_that_do_not_fit_can_be_left_out(tmp_path: Path, minari_root: Path) -> None:
    make_dataset("goal")
    source = data_folder(minari_root, "goal")
    with h5py.File(source / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2/infos/qpos"]
        file["episode_2/infos/qpos"] = np.zeros((20, 7))
    with pytest.raises(DatasetError, match="--skip info/qpos"):
        import_minari(source, tmp_path / "d")
    import_minari(source, tmp_path / "d", skip=("info/qpos",))
    with DatasetReader.open(tmp_path / "d") as reader:
        paths = [leaf.path for leaf in reader.schema.info_leaves]
    assert paths == ["source/reward", "info/inner/count", "initial_info/inner/count"]


@pytest.mark.parametrize(
    "point", ["shard-inside", "rename-before", "commit-before", "commit-inside"]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_import_that_was_killed_is_run_again(
    point: str, tmp_path: Path, run_retold: RunRetold, minari_root: Path
) -> None:
    original = make_dataset("goal")
    arguments = ("import", "minari", data_folder(minari_root, "goal"), tmp_path / "d")
    assert run_retold(*arguments, kill_at=point).returncode < 0
    output = run_retold(*arguments)
    assert output.returncode == 0, output.stderr
    assert_same_datasets(original, as_minari(tmp_path / "d"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_importing_again_adds_nothing_and_another_source_is_appended(tmp_path: Path) -> None:
    make_dataset("goal")
    first = import_minari("tests/goal-v0", tmp_path / "d")
    assert (first.episodes, first.skipped, first.steps) == (4, 0, 29)
    again = import_minari("tests/goal-v0", tmp_path / "d")
    assert (again.episodes, again.skipped, again.snapshot) == (0, 4, 0)
    assert CommitLog.open(tmp_path / "d").read(0).operation == "import"
    make_dataset("text")
    with pytest.raises(DatasetError, match="observation_space differs"):
        import_minari("tests/text-v0", tmp_path / "d")
    with DatasetReader.open(tmp_path / "d") as reader:
        assert len(reader) == 4
        assert reader.table["seed"].to_pylist() == [0, None, 2**31, 5]

"""Minari in, Minari out, and Minari's own read API over a dataset."""

import json
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from conftest import RunRetold
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari_datasets import (
    SPACES,
    VECTOR,
    assert_same,
    assert_same_datasets,
    data_folder,
    file_contents,
    import_minari,
    make_buffer,
    make_dataset,
    metadata_of,
    no_infos,
    some_infos,
)

from retold.dataset import as_minari
from retold.dataset.audit import audit_structure
from retold.dataset.export_command import ExportConfig, export_dataset
from retold.dataset.reader import DatasetReader
from retold.relabel.audit import audit_rewards
from retold.schemas.errors import DatasetError


@pytest.fixture(autouse=True)
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def round_trip(name: str, tmp_path: Path, data_format: Any = None) -> minari.MinariDataset:
    import_minari(f"tests/{name}-v0", tmp_path / "d")
    assert audit_structure(tmp_path / "d") == [] and audit_rewards(tmp_path / "d") == []
    export_dataset(
        ExportConfig(
            format="minari",
            dataset=tmp_path / "d",
            target=tmp_path / "out",
            data_format=data_format,
        )
    )
    return minari.MinariDataset(tmp_path / "out" / "data")


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    original = make_dataset(name)
    back = round_trip(name, tmp_path)
    assert_same_datasets(original, back)
    files = [
        path / "data" / "metadata.json"
        for path in (data_folder(tmp_path / "minari", name), tmp_path / "out")
    ]
    assert_same(*(file_contents(path.with_name("main_data.hdf5")) for path in files))
    one, two = (json.loads(path.read_bytes()) for path in files)
    one.pop("dataset_size"), two.pop("dataset_size")
    assert {**one, "author": set(one["author"])} == {**two, "author": set(two["author"])}


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minaris_arrow_files_come_back_bit_for_bit(
    name: str, data_format: str, tmp_path: Path
) -> None:
    original = make_dataset(name, data_format)
    back = round_trip(name, tmp_path)
    assert MinariStorage.read_raw_metadata(back.storage.data_path)["data_format"] == data_format
    assert_same_arrow(original, back)
    assert metadata_of(original) == metadata_of(back)


def assert_same_arrow(one: minari.MinariDataset, two: minari.MinariDataset) -> None:
    """Minari returns nested infos of Arrow files as rows of dicts: compare their text."""
    assert one.observation_space == two.observation_space
    for first, second in zip(one, two, strict=True):
        assert repr(first.infos) == repr(second.infos)
        assert_same({**vars(first), "infos": None}, {**vars(second), "infos": None})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_dataset_with_jpeg_images_is_exported_without(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    buffers = [make_buffer(*SPACES["image"], length=3, rng=rng)]
    observation_space, action_space = SPACES["image"]
    original = minari.create_dataset_from_buffers(
        "tests/image-v0",
        buffers,
        observation_space=observation_space,
        action_space=action_space,
    )
    back = round_trip("image", tmp_path)
    assert not back.storage.jpeg_encoding
    assert_same_datasets(original, back)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=4),
    dtype=st.sampled_from(["float16", "float32", "float64", "int8", "uint16", "int64"]),
    seed=st.one_of(st.none(), st.just(0), st.integers(0, 2**63)),
    draw=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_episodes_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[tuple[int, bool]],
    dtype: str,
    seed: int | None,
    draw: int,
) -> None:
    """Whatever dtype the file holds, declared or not, and any bits of it."""
    folder = tmp_path_factory.mktemp("any")
    rng = np.random.default_rng(draw)
    space = spaces.Box(0, 1, (2, 3), np.float32)
    buffers = []
    for length, terminated in lengths:
        size = (length + 1) * 6 * np.dtype(dtype).itemsize
        bits = np.frombuffer(rng.bytes(size), dtype).reshape(length + 1, 2, 3)
        last = np.arange(length) == length - 1
        buffers.append(
            EpisodeBuffer(
                seed=seed,
                observations=bits,
                actions=rng.integers(0, 3, length),
                rewards=rng.standard_normal(length).astype(rng.choice(["float32", "float64"])),
                terminations=last & terminated,
                truncations=last & (not terminated or bool(rng.random() < 0.5)),
                infos=rng.choice(np.array([no_infos, some_infos]))(length, rng),
            )
        )
    (folder / "source").mkdir()
    storage = MinariStorage.new(folder / "source" / "data", space, spaces.Discrete(3))
    storage.update_metadata({"dataset_id": "any-v0", "minari_version": "0.5.3"})
    storage.update_episodes(buffers)
    import_minari(folder / "source", folder / "d")
    export_dataset(ExportConfig(format="minari", dataset=folder / "d", target=folder / "out"))
    original = minari.MinariDataset(folder / "source" / "data")
    assert_same_datasets(original, minari.MinariDataset(folder / "out" / "data"))
    assert_same_datasets(original, as_minari(folder / "d"))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minaris_read_api_works_on_a_dataset(name: str, tmp_path: Path) -> None:
    original = make_dataset(name)
    import_minari(f"tests/{name}-v0", tmp_path / "d")
    view = as_minari(tmp_path / "d")
    assert_same_datasets(original, view)
    assert view.spec.total_steps == 29 and view.spec.env_spec == original.env_spec
    assert_same(vars(original[2]), vars(view[2]))
    original.set_seed(3), view.set_seed(3)
    pairs = zip(original.sample_episodes(3), view.sample_episodes(3), strict=True)
    for one, two in pairs:
        assert_same(vars(one), vars(two))
    kept = view.filter_episodes(lambda episode: bool(episode.terminations[-1]))
    assert kept.episode_indices.tolist() == [0, 2] and kept.total_steps == 21
    assert [len(episode) for episode in kept.iterate_episodes()] == [1, 20]
    (tmp_path / "copy").mkdir()
    copy = MinariStorage.new(
        tmp_path / "copy" / "data",
        view.observation_space,
        view.action_space,
        jpeg_encoding=False,
    )
    copy.update_from_storage(view.storage)
    for index in range(4):
        (one,), (two,) = copy.get_episodes([index]), original.storage.get_episodes([index])
        assert_same(one, two)
    seeds = [metadata.get("seed") for metadata in copy.get_episode_metadata(range(4))]
    assert seeds == [0, None, 2**31, 5]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_dataset_is_not_written_through_minari(tmp_path: Path) -> None:
    make_dataset("text")
    import_minari("tests/text-v0", tmp_path / "d")
    view = as_minari(tmp_path / "d")
    with pytest.raises(DatasetError, match="may read this dataset"):
        view.update_dataset_from_buffer([EpisodeBuffer()])
    with pytest.raises(DatasetError, match="may read this dataset"):
        view.storage.update_metadata({})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_goal_environments_observation_is_imported_as_it_is(tmp_path: Path) -> None:
    original = make_dataset("goal")
    import_minari("tests/goal-v0", tmp_path / "d")
    with DatasetReader.open(tmp_path / "d") as reader:
        episode = reader.read_episode(2)
        for name in ("observation", "achieved_goal", "desired_goal"):
            stored = episode.observation[f"observation/{name}"]
            assert_same(stored, original[2].observations[name])
        assert episode.terminated[-1] and not episode.truncated.any()
        assert reader.schema.tasks[0].name == "CartPole-v1"
        assert reader.schema.tasks[0].horizon == 500


def test_a_collected_dataset_is_seen_and_exported(run_retold: RunRetold, tmp_path: Path) -> None:
    run_retold("collect", "maze", "raw", "--episodes", "4", cwd=tmp_path)
    output = run_retold("export", "minari", "raw", "minari/maze-v0", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    assert "goal events" in output.stdout
    assert_same_datasets(
        as_minari(tmp_path / "raw"), minari.MinariDataset(tmp_path / "minari" / "maze-v0" / "data")
    )


def test_a_key_that_is_no_file_name_is_stored(tmp_path: Path) -> None:
    keys = ["..", ".", "zarr.json", "a%b", "plain"]
    space = spaces.Dict({key: VECTOR for key in keys})
    (tmp_path / "source").mkdir()
    storage = MinariStorage.new(
        tmp_path / "source" / "data", space, spaces.Discrete(2), data_format="arrow"
    )
    storage.update_metadata({"dataset_id": "keys-v0", "minari_version": "0.5.3"})
    rng = np.random.default_rng(0)
    storage.update_episodes([make_buffer(space, spaces.Discrete(2), length=4, rng=rng)])
    import_minari(tmp_path / "source", tmp_path / "d")
    assert_same_datasets(
        minari.MinariDataset(tmp_path / "source" / "data"), as_minari(tmp_path / "d")
    )
    assert audit_structure(tmp_path / "d") == []


def any_space() -> st.SearchStrategy[spaces.Space[Any]]:
    """Every kind of space that the format holds, nested at will."""
    shapes = st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 2), (0,), (2, 0)])
    dtypes = st.sampled_from(["float32", "float64", "uint8", "int16", "int64"])
    leaves = st.one_of(
        st.builds(lambda shape, dtype: spaces.Box(0, 100, shape, np.dtype(dtype)), shapes, dtypes),
        st.builds(
            lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)
        ),
        st.builds(
            lambda nvec, start: spaces.MultiDiscrete([nvec] * 2, start=[[start] * len(nvec)] * 2),
            st.lists(st.integers(1, 5), min_size=1, max_size=3),
            st.integers(-2, 2),
        ),
        st.builds(lambda n: spaces.MultiBinary(n), st.integers(1, 4)),
        st.builds(lambda n: spaces.Text(n, min_length=0, charset="xyzß☃ "), st.integers(1, 5)),
    )
    keys = st.text("abc%: é-", min_size=1, max_size=4)
    return st.recursive(
        leaves,
        lambda below: st.one_of(
            st.dictionaries(keys, below, min_size=1, max_size=3).map(spaces.Dict),
            st.lists(below, min_size=1, max_size=3).map(lambda items: spaces.Tuple(items)),
        ),
        max_leaves=5,
    )


@settings(max_examples=15, deadline=None)
@given(
    observation_space=any_space(),
    action_space=any_space(),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_any_spaces_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    lengths: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("spaces")
    rng = np.random.default_rng(0)
    (folder / "source").mkdir()
    storage = MinariStorage.new(folder / "source" / "data", observation_space, action_space)
    storage.update_metadata({"dataset_id": "any-v0", "minari_version": "0.5.3"})
    storage.update_episodes(
        make_buffer(observation_space, action_space, length=length, rng=rng) for length in lengths
    )
    import_minari(folder / "source", folder / "d")
    assert audit_structure(folder / "d") == []
    export_dataset(ExportConfig(format="minari", dataset=folder / "d", target=folder / "out"))
    original = minari.MinariDataset(folder / "source" / "data")
    assert_same_datasets(original, minari.MinariDataset(folder / "out" / "data"))
    assert_same_datasets(original, as_minari(folder / "d"))


def test_variants_are_seen_through_minari(run_retold: RunRetold, tmp_path: Path) -> None:
    run_retold("collect", "maze", "raw", "--episodes", "20", cwd=tmp_path)
    run_retold("relabel", "raw", "retold", "--workers", "0", cwd=tmp_path)
    view = as_minari(tmp_path / "retold")
    with DatasetReader.open(tmp_path / "retold") as reader:
        assert len(view) == len(reader) > 0
        assert [len(episode) for episode in view] == reader.lengths.tolist()
        returns = [episode.rewards.sum() for episode in view]
        assert returns == reader.table["episode_return"].to_pylist()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_infos_may_be_text_and_may_be_missing(
    data_format: Any, tmp_path: Path, minari_root: Path
) -> None:
    def words(length: int, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "say": ["ä" * (step % 3) for step in range(length + 1)],
            "flag": [True] * (length + 1),
        }

    make_dataset("text", data_format, infos=words)
    back = round_trip("text", tmp_path)
    with DatasetReader.open(tmp_path / "d") as reader:
        episode = reader.read_episode(2)
        assert episode.info["info/say"].tolist()[:3] == ["ä", "ää", ""]
        assert episode.info["initial_info/say"].tolist()[:2] == ["", ""]
        assert episode.info_present["initial_info/say"].tolist() == [True] + [False] * 19
    if data_format == "hdf5":
        source = data_folder(minari_root, "text") / "data" / "main_data.hdf5"
        assert_same(
            file_contents(source), file_contents(tmp_path / "out" / "data" / "main_data.hdf5")
        )
    else:
        assert back[2].infos["say"].tolist()[:3] == ["", "ä", "ää"]

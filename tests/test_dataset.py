"""The dataset: round trips, tampering, concurrency, and zarr-python's view of it."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from retold.dataset import zarr_writer
from retold.dataset.audit import audit_structure
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_writer import write_raw_shard
from retold.dataset.summary import summarize
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.errors import DatasetError, FormatError, RetoldError
from retold.schemas.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    TextSpace,
    TupleSpace,
    space_leaves,
)
from retold.schemas.vocabulary import GoalFamily, GoalVocabulary

VOCABULARY = GoalVocabulary((GoalFamily("state", (("at",), ("0", "1", "2"))),))
SCHEMA = DatasetSchema(
    tasks=(
        TaskDescription(
            name="toy",
            kwargs={"size": 3},
            code_version="1",
            limit_is="truncation",
            horizon=400,
            vocabulary=VOCABULARY,
            max_instruction_length=1,
        ),
    ),
    observation_space=DictSpace(
        (
            ("frame", BoxSpace((8, 8, 3), "uint8", 0, 255)),
            ("words", TextSpace(9)),
            (
                "pair",
                TupleSpace(
                    (
                        BoxSpace((3,), "float32", float("-inf"), float("inf")),
                        MultiBinarySpace((2,)),
                    )
                ),
            ),
        )
    ),
    action_space=DictSpace((("one", DiscreteSpace(4)), ("many", MultiDiscreteSpace((3, 2))))),
    info_leaves=(
        Leaf("info/speed", "float32", (2,), is_optional=True),
        Leaf("info/lives", "uint8", (), is_optional=True),
    ),
)


def make_episode(number: int, length: int) -> Episode:
    rng = np.random.default_rng(number)
    frame = rng.integers(0, 256, (length + 1, 8, 8, 3)).astype(np.uint8)
    vector = rng.standard_normal((length + 1, 3)).astype(np.float32)
    vector[0] = (np.inf, -np.inf, 0.0)
    words = np.empty(length + 1, object)
    words[:] = ["ä" * int(n) for n in rng.integers(0, 5, length + 1)]
    flags = np.zeros(length, np.bool_)
    last = flags.copy()
    last[-1] = True
    # Half of the episodes have infos, and those at some of their steps only.
    present = rng.random((2, length)) < 0.5 * (number % 4 > 1)
    speed = rng.standard_normal((length, 2)).astype(np.float32) * present[0][:, None]
    lives = (rng.integers(0, 9, length) * present[1]).astype(np.uint8)
    step = np.flatnonzero(rng.random(length) < 0.3).astype(np.uint32)
    record = EpisodeRecord(
        episode_id=f"{number:032x}",
        task=0,
        length=length,
        episode_return=0.0,
        terminated=bool(number % 2),
        truncated=not number % 2,
        environment_terminated=bool(number % 2),
        run_seed=0,
        index=number,
        seed=0,
    )
    return Episode(
        record=record,
        observation={
            "observation/frame": frame,
            "observation/words": words,
            "observation/pair/0": vector,
            "observation/pair/1": rng.integers(0, 2, (length + 1, 2)).astype(np.int8),
        },
        action={
            "action/one": rng.integers(0, 4, length),
            "action/many": rng.integers(0, 2, (length, 2)),
        },
        reward=rng.standard_normal(length).astype(np.float32),
        terminated=last if number % 2 else flags,
        truncated=flags if number % 2 else last,
        environment_terminated=last if number % 2 else flags,
        reset=rng.random(length) < 0.2,
        event_step=step,
        event_goal=rng.integers(0, 3, len(step)).astype(np.uint32),
        info={"info/speed": speed, "info/lives": lives},
        info_present={"info/speed": present[0], "info/lives": present[1]},
    )


def write(path: Path, episodes: list[Episode], profile: Any = "fast") -> None:
    log = CommitLog.create(path)
    entry = write_raw_shard(path, episodes, SCHEMA, profile=profile)
    log.append(operation="collect", added=[entry])


def assert_equal(one: Episode, two: Episode) -> None:
    assert one.record == two.record
    for name in ("observation", "action", "info", "info_present"):
        first, second = getattr(one, name), getattr(two, name)
        assert list(first) == list(second)
        for path in first:
            assert_array_equal(first[path], second[path], err_msg=path)
    for name in Episode.__dataclass_fields__:
        if name not in ("record", "observation", "action", "info", "info_present"):
            assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    profile=st.sampled_from(["fast", "small"]),
)
def test_any_episodes_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], profile: str
) -> None:
    path = tmp_path_factory.mktemp("data") / "d"
    episodes = [make_episode(i, length) for i, length in enumerate(lengths)]
    write(path, episodes, profile)
    with DatasetReader.open(path) as reader:
        for row, episode in enumerate(episodes):
            assert_equal(reader.read_episode(row), episode)
            start = episode.length // 3
            window = reader.read_window(row, start, episode.length - start)
            assert_array_equal(window.reward, episode.reward[start:])
            frames = episode.observation["observation/frame"][start:]
            assert_array_equal(window.observation["observation/frame"], frames)


def test_zarr_python_reads_every_array(tmp_path: Path) -> None:
    episodes = [make_episode(i, 200 + i) for i in range(3)]
    write(tmp_path / "d", episodes)
    with DatasetReader.open(tmp_path / "d") as reader:
        shard = reader.shard_reader(reader.shards[0].shard_id)
        group = zarr.open_group(str(shard.path / "arrays"), mode="r")
        names = [leaf.path for leaf in SCHEMA.leaves if not leaf.is_ragged and not leaf.is_optional]
        names += ["info/speed/data", "info/lives/present"]
        for name in [*names, "events/t", "events/goal", "observation/words/offsets"]:
            ours = shard.array(name).read_all()
            theirs = np.asarray(group[name][...])  # type: ignore[index]
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), name


def test_equal_content_has_equal_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, [make_episode(1, 90)])
    ids = [CommitLog.open(tmp_path / name).live_shards()[0].shard_id for name in "ab"]
    assert ids[0] == ids[1]


def test_bytes_do_not_depend_on_the_threads_that_encode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    vectors = np.cumsum(rng.standard_normal((40_000, 32)), axis=0, dtype=np.float32)
    frames = rng.integers(0, 9, (900, 64, 64, 3)).astype(np.uint8)
    for name, array in (("vectors", vectors), ("frames", frames)):
        found = []
        for threaded_bytes in (0, 10**12):
            monkeypatch.setattr(zarr_writer, "_THREADED_BYTES", threaded_bytes)
            folder = tmp_path / f"{name}-{threaded_bytes}"
            zarr_writer.write_array(folder, array, "fast")
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            found.append([path.read_bytes() for path in files])
            assert_array_equal(np.asarray(zarr.open_array(str(folder), mode="r")[...]), array)
        assert found[0] == found[1]


def test_every_flipped_byte_is_found_and_its_file_named(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write(path, [make_episode(i, 40) for i in range(2)])
    assert audit_structure(path) == []
    rng = np.random.default_rng(0)
    files = [p for name in ("shards", "schemas") for p in (path / name).rglob("*") if p.is_file()]
    assert len(files) > 20
    for file in files:
        original = file.read_bytes()
        content = bytearray(original)
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        findings = audit_structure(path)
        assert any(file.name in f"{f.where} {f.what}" for f in findings), file
        file.write_bytes(original)
    assert audit_structure(path) == []


def test_a_damaged_chunk_is_never_read_as_data(tmp_path: Path) -> None:
    write(tmp_path / "d", [make_episode(0, 50)])
    (file,) = (tmp_path / "d").glob("shards/*/*/arrays/reward/c/0")
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    with DatasetReader.open(tmp_path / "d") as reader, pytest.raises(FormatError, match="reward"):
        reader.read_episode(0)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("reward", np.zeros(3, np.float32), "'reward' has 3 rows"),
        ("reward", np.full(6, np.nan, np.float32), "not finite"),
        ("terminated", np.ones(6, np.bool_), "before the last"),
        ("event_step", np.array([9], np.uint32), "event"),
        ("action", {"action/one": np.zeros(6, np.int64)}, "'action/many' is missing"),
    ],
)
def test_a_faulty_episode_is_refused(tmp_path: Path, field: str, value: Any, words: str) -> None:
    episode = make_episode(2, 6)
    broken = Episode(**{**{f: getattr(episode, f) for f in vars(episode)}, field: value})
    with pytest.raises(DatasetError, match=words):
        write_raw_shard(tmp_path, [broken], SCHEMA)


def append_many(path: Path, worker: int) -> None:
    log = CommitLog.open(path)
    for i in range(10):
        entry = write_raw_shard(path, [make_episode(100 * worker + i, 3)], SCHEMA)
        log.append(operation="collect", added=[entry])


def test_appending_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d"
    CommitLog.create(path)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_many, args=(path, i)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    with DatasetReader.open(path) as reader:
        assert reader.snapshot.number == 39 and len(reader) == 40
        assert len(set(reader.table["episode_id"].to_pylist())) == 40


def test_a_snapshot_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write(path, [make_episode(0, 5)])
    write(path, [make_episode(1, 5)])
    assert len(DatasetReader.open(path, snapshot=0)) == 1
    assert len(DatasetReader.open(path)) == 2


def test_a_snapshot_without_shards_is_empty_and_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "d"
    CommitLog.create(path).append(operation="relabel")
    with DatasetReader.open(path) as reader:
        assert len(reader) == 0 and reader.table.num_rows == 0
    assert audit_structure(path) == []
    with DatasetReader.open(path) as reader:
        summary = summarize(reader, {})
        with pytest.raises(DatasetError, match="no episode is live"):
            _ = reader.schema
    assert (summary["episodes"], summary["tasks"], summary["length"]) == (0, [], {})


def test_a_changed_commit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write(path, [make_episode(0, 5)])
    write(path, [make_episode(1, 5)])
    first = path / "commits" / "00000000.json"
    first.write_bytes(first.read_bytes().replace(b'"collect"', b'"collekt"'))
    with pytest.raises(RetoldError, match="00000000.json"):
        DatasetReader.open(path)


def test_leaf_paths_follow_the_space() -> None:
    paths = [leaf.path for leaf in space_leaves(SCHEMA.observation_space, "observation")]
    assert paths == [
        "observation/frame",
        "observation/words",
        "observation/pair/0",
        "observation/pair/1",
    ]
    assert DatasetSchema.from_json(SCHEMA.to_json()) == SCHEMA

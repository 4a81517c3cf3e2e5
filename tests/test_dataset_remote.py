"""Datasets at URLs: the same as in a folder, read in ranges, written without a lock server."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import RunRetold
from numpy.testing import assert_array_equal
from race import TINY, Outcome, Race, make_tiny_episode, run_race
from s3_server import BUCKET, S3Server, run_s3_server

from retold.cli.__main__ import main
from retold.collect.command import CollectConfig, collect
from retold.dataset import checkpoint, remote_path
from retold.dataset import log as log_module
from retold.dataset.audit import audit_structure
from retold.dataset.compact import CompactConfig, compact
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.filter import FilterConfig, filter_dataset
from retold.dataset.gc import GcConfig, collect_garbage
from retold.dataset.gc_files import gc_files
from retold.dataset.log import CommitLog
from retold.dataset.paths import dataset_path
from retold.dataset.pins import pin, read_pins
from retold.dataset.reader import DatasetReader
from retold.dataset.remote_path import RemotePath
from retold.dataset.repair import RepairConfig, repair
from retold.dataset.sampler import WindowSampler
from retold.dataset.shard_place import list_shards
from retold.dataset.shard_writer import write_raw_shard
from retold.dataset.snapshot_names import add_tag
from retold.dataset.sources import source_locations
from retold.dataset.window_batch import WindowBatch
from retold.relabel.audit import audit_rewards
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.episode import Episode
from retold.schemas.errors import ConflictError, DatasetError, FormatError, RetoldError, UsageError
from retold.schemas.spaces import BoxSpace

TASK = {"size": 7, "limit": 60}
VECTORS = replace(TINY, observation_space=BoxSpace((64,), "float32", -np.inf, np.inf))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_s3_server() as running:
        yield running


@pytest.fixture
def place(server: S3Server, request: pytest.FixtureRequest) -> RemotePath:
    """A URL of this test alone."""
    server.lose_replies(0)
    return RemotePath(f"s3://{BUCKET}/{request.node.name[:40]}")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A raw dataset of two shards and its variants, in folders."""
    folder = tmp_path_factory.mktemp("maze")
    for first in (0, 6):
        collect(
            CollectConfig(
                task="maze", task_args=TASK, dataset=folder / "raw", first=first, episodes=6
            )
        )
    relabel(RelabelConfig(source=folder / "raw", target=folder / "retold", workers=0))
    return folder / "raw", folder / "retold"


def draw(sampler: WindowSampler, number: int, size: int) -> WindowBatch:
    return sampler.sample_into(sampler.make_batch(size), number)


def upload(server: S3Server, folder: Path, place: RemotePath) -> RemotePath:
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"{str(place).removeprefix('s3://bucket/')}/{path.relative_to(folder)}"
            server.put(key, path.read_bytes())
    return place


def test_windows_of_a_url_are_those_of_the_folder_it_was_copied_from(
    server: S3Server, place: RemotePath, local: tuple[Path, Path]
) -> None:
    urls = [upload(server, path, place / path.name) for path in local]
    streams = []
    for paths in (local, urls):
        readers = [DatasetReader.open(path) for path in paths]
        for settings in ({}, {"cache_bytes": 1_000_000}, {"resident_bytes": 0}):
            sampler = WindowSampler(readers, window_length=16, seed=3, **settings)  # type: ignore[arg-type]
            streams.append([draw(sampler, number, 8) for number in range(3)])
    for here, there in zip(local, urls, strict=True):
        with DatasetReader.open(here) as one, DatasetReader.open(there) as other:
            assert_array_equal(one.read_episode(3).reward, other.read_episode(3).reward)
    for stream in streams[1:]:
        for batch, other in zip(streams[0], stream, strict=True):
            assert_array_equal(batch.observation["observation"], other.observation["observation"])
            assert_array_equal(batch.previous_reward, other.previous_reward)
            assert_array_equal(batch.previous_action["action"], other.previous_action["action"])
            assert_array_equal(batch.row, other.row)


def test_a_window_costs_one_range_once_the_index_is_known(
    server: S3Server, place: RemotePath, tmp_path: Path
) -> None:
    episodes = [make_long_episode(number) for number in range(4)]
    log = CommitLog.create(tmp_path / "d")
    log.append(operation="collect", added=[write_raw_shard(log.path, episodes, VECTORS)])
    upload(server, tmp_path / "d", place)
    with DatasetReader.open(place) as reader:
        sampler = WindowSampler([reader], window_length=128, seed=0)
        draw(sampler, 0, 1)  # zarr.json, index, resident columns
        server.take_requests()
        draw(sampler, 1, 1)
        requests = server.take_requests()
        assert len(requests) == 1, requests
        first, _, last = requests[0][2].removeprefix("bytes=").partition("-")
        size = int(last) - int(first) + 1
        assert size <= 4 * 128 * 64 * 4, size  # the window lies in at most three chunks
        draw(sampler, 2, 8)
        assert len(server.take_requests()) == 8
    with DatasetReader.open(place) as reader:
        sampler = WindowSampler([reader], window_length=128, seed=0, cache_bytes=10**8)
        draw(sampler, 0, 64)
        server.take_requests()
        draw(sampler, 1, 64)
        assert server.take_requests() == []


def test_every_stage_takes_urls(
    server: S3Server,
    place: RemotePath,
    run_retold: RunRetold,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw, retold, small = f"{place}/raw", f"{place}/retold", f"{place}/small"
    task = json.dumps(TASK)

    def run(*arguments: str | Path) -> str:
        assert main([*map(str, arguments)]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    run("collect", "maze", raw, "--episodes", "12", "--task-args", task)
    told = run_retold("relabel", raw, retold, "--workers", "1")
    assert told.returncode == 0, told.stderr
    for dataset in (raw, retold):
        run("audit", dataset)
    assert json.loads(run("info", raw, "--json"))["episodes"] == 12
    assert "collect" in run("log", raw)
    run("tag", raw, "first")
    run("filter", f"{raw}@first", small, "--where", "length >= 2")
    run("diff", raw, raw)
    run("explain", retold, "0")
    run("coverage", retold)
    run("export", "parquet", raw, tmp_path / "episodes")
    run("import", "parquet", tmp_path / "episodes", f"{place}/imported")
    run("train", tmp_path / "run", "--data", raw, "--data", retold, "--updates", "2")
    assert read_pins(dataset_path(raw)) == []
    run("evict", raw, "--episodes", "8")
    assert json.loads(run("info", f"{raw}@first", "--json"))["episodes"] == 12


def test_variants_find_their_source_beside_them_wherever_both_are_moved(
    server: S3Server, place: RemotePath, local: tuple[Path, Path]
) -> None:
    raw, retold = place / "raw", place / "retold"
    collect(CollectConfig(task="maze", task_args=TASK, dataset=raw, episodes=6))
    relabel(RelabelConfig(source=raw, target=retold, workers=0))
    (source,) = [s for c in CommitLog.open(retold).commits() for s in c.sources.values()]
    assert source.locations == ("../raw", str(raw))
    assert audit_structure(retold) == [] and audit_rewards(retold) == []
    moved = RemotePath(f"{place}-moved")
    for name, content in tree(place).items():
        server.put(f"{str(moved).removeprefix('s3://bucket/')}/{name}", content)
        (place / name).unlink()
    assert audit_structure(moved / "retold") == []


def make_long_episode(number: int) -> Episode:
    """600 steps of noise, which does not compress."""
    short = make_tiny_episode(number)
    length = 600
    flags = np.zeros(length, np.bool_)
    rng = np.random.default_rng(number)
    return replace(
        short,
        record=replace(short.record, length=length, episode_return=float(length)),
        observation={
            "observation": rng.standard_normal((length + 1, 64)).astype(np.float32),
        },
        action={"action": np.ones(length, np.int64)},
        reward=np.ones(length, np.float32),
        terminated=flags,
        truncated=np.arange(length) == length - 1,
        environment_terminated=flags,
        reset=flags,
    )


def tree(place: RemotePath) -> dict[str, bytes]:
    return place.read_files(list(place.list_files()))


def test_new_datasets_are_made_at_urls_and_whole_only_with_their_commit(
    place: RemotePath, local: tuple[Path, Path]
) -> None:
    filter_dataset(FilterConfig(dataset=local[0], output=place, where="length >= 1"))
    with DatasetReader.open(local[0]) as here, DatasetReader.open(place) as there:
        assert here.table["episode_id"].equals(there.table["episode_id"])
    assert audit_structure(place) == []
    with pytest.raises(DatasetError, match="exists already"):
        filter_dataset(FilterConfig(dataset=local[0], output=place, where="length >= 1"))
    for name in ("commits/00000000.json", "LATEST"):  # as if it had been interrupted
        (place / name).unlink()
    filter_dataset(FilterConfig(dataset=local[0], output=place, where="length >= 1"))
    assert audit_structure(place) == []


def test_a_dataset_at_a_url_is_changed_repaired_and_pinned(
    server: S3Server, place: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (checkpoint, log_module):
        monkeypatch.setattr(module, "CHECKPOINT_EVERY", 8)
    log = CommitLog.create(place)
    for number in range(14):  # a checkpoint among them
        entry = write_raw_shard(place, [make_tiny_episode(number)], TINY)
        server.take_requests()
        head = log.append(operation="collect", added=[entry])
        if number not in (0, 7):  # the first also tries the store, the other writes a checkpoint
            assert len(server.take_requests()) == 7
    assert (place / "checkpoints" / "00000007.json").exists()
    server.take_requests()
    with DatasetReader.open(place) as reader:
        assert len(reader) == 14 and reader.lengths.sum() > 0
    # The checkpoint, what came after it, the schema: not three files of each of 14 shards.
    assert len(server.take_requests()) < 30
    assert audit_structure(place) == []
    read = Counter(path for method, path, _ in server.take_requests() if method == "GET")
    # Checksums first, then episodes; tables for the ids and the checkpoint, too.
    assert max(count for path, count in read.items() if "/shards/" in path) == 4
    assert max(count for path, count in read.items() if "/arrays/" in path) == 2
    evict(EvictConfig(dataset=place, episodes=10))
    assert len(server.take_requests()) < 25  # of the log only what is after the checkpoint
    (place / "LATEST").unlink()  # only a hint
    compact(CompactConfig(dataset=place))
    add_tag(log, "start", log.snapshot(13))
    assert audit_structure(place) == []
    with DatasetReader.open(f"{place}@start") as reader:
        assert len(reader) == 14
    with pin(place, "mine", "a test", head):
        assert [found.holder for found in read_pins(place)] == ["a test"]
    assert read_pins(place) == []
    with DatasetReader.open(place) as reader:
        shard = reader.shard_of(0)[0]
        path = shard.path / "arrays" / "observation" / "c" / "0"
    assert isinstance(path, RemotePath)
    content = bytearray(path.read_bytes())
    content[3] ^= 4
    path.write_bytes(bytes(content))
    assert {finding.where for finding in audit_structure(place)} == {str(path)}
    with DatasetReader.open(place) as reader, pytest.raises(FormatError, match=str(path)):
        reader.read_episode(0)
    for new in (tmp_path / "new", RemotePath(f"{place}-saved")):
        result = repair(RepairConfig(dataset=place, new=new))
        assert result.lost >= 1 and audit_structure(new) == []
        with pytest.raises(DatasetError, match="exists already"):
            repair(RepairConfig(dataset=place, new=new))


def test_a_store_that_creates_a_file_twice_is_only_read(
    server: S3Server, place: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_path, "_PROBED", set())
    server.set_conditions(heeded=False)
    try:
        with pytest.raises(DatasetError, match="creates a file twice"):
            CommitLog.create(place)
    finally:
        server.set_conditions(heeded=True)
    assert place.list_names() == []
    with pytest.raises(DatasetError, match="only read"):
        CommitLog.create(RemotePath("http://127.0.0.1:1/d"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("s3://bucket/nothing", "there is no dataset here"),
        ("s3://no-such-bucket/d", "there is no dataset here"),
        ("s3://bucket/a/../b", "mean nothing in a URL"),
        ("nonsense://x/d", "cannot be opened"),
        ("http://127.0.0.1:1/d", "cannot be read"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_line(
    server: S3Server, text: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", text]) in (1, 2)
    error = capsys.readouterr().err
    assert what in error and "Traceback" not in error and len(error.strip().splitlines()) == 1


def test_gc_on_a_store_deletes_what_nothing_needs(server: S3Server, place: RemotePath) -> None:
    log = CommitLog.create(place)
    entries = [write_raw_shard(place, [make_tiny_episode(n)], TINY) for n in range(4)]
    for entry in entries[:3]:
        log.append(operation="collect", added=[entry])
    evict(EvictConfig(dataset=place, episodes=1))
    server.put(f"{str(place).removeprefix('s3://bucket/')}/pins/.half", b"{")
    young = collect_garbage(GcConfig(dataset=place, keep=0))
    assert (young.files, young.deleted) == (0, True)
    with pin(place, "train", "a training", log.snapshot(1)):
        plan = collect_garbage(GcConfig(dataset=place, keep=0, grace=0, dry_run=True))
        done = collect_garbage(GcConfig(dataset=place, keep=0, grace=0))
    assert done.dropped == plan.dropped and not plan.deleted
    reasons = {item.path.rpartition("/")[2]: item.reason for item in done.dropped}
    assert reasons == {entries[3].shard_id: "never committed", ".half": "left by a killed writer"}
    gone = collect_garbage(GcConfig(dataset=place, keep=0, grace=0))
    assert {item.reason for item in gone.dropped} == {"in no kept snapshot"}
    with pytest.raises(DatasetError, match="`gc` dropped it in commit"):
        DatasetReader.open(f"{place}@1")
    assert list_shards(place) == [f"{entries[2].shard_id[:2]}/{entries[2].shard_id}"]
    assert audit_structure(place) == []
    with pytest.raises(ConflictError, match="removed before it was committed"):
        log.append(operation="collect", added=[entries[3]])


def test_gc_on_a_store_leaves_what_was_made_young_meanwhile(place: RemotePath) -> None:
    CommitLog.create(place)
    entry = write_raw_shard(place, [make_tiny_episode(0)], TINY)
    path = f"shards/{entry.shard_id[:2]}/{entry.shard_id}"
    assert not gc_files(place).delete(path, grace_seconds=60)
    CommitLog.open(place).append(operation="collect", added=[entry])
    assert audit_structure(place) == []


def test_a_writer_is_told_that_gc_has_planned_to_take_its_shard(place: RemotePath) -> None:
    log = CommitLog.create(place)
    entry = write_raw_shard(place, [make_tiny_episode(0)], TINY)

    def gc_comes_first(since: object) -> None:
        if not since:
            details = {"dropped": [entry.shard_id], "bytes": 1}
            CommitLog.open(place).append(operation="gc", details=details)

    with pytest.raises(ConflictError, match="removed before it was committed"):
        log.append(operation="collect", added=[entry], check=gc_comes_first)


def test_locations_lead_nowhere_outside_the_store() -> None:
    here = RemotePath("s3://bucket/a/retold")
    assert source_locations(RemotePath("s3://bucket/raw"), here) == (
        "../../raw",
        "s3://bucket/raw",
    )
    assert source_locations(RemotePath("s3://other/raw"), here) == ("s3://other/raw",)
    assert source_locations(Path("/raw"), here) == ("/raw",)
    assert here.follow("../raw") == RemotePath("s3://bucket/a/raw")
    with pytest.raises(UsageError, match="out of bucket"):
        here.follow("../../../other/raw")
    with pytest.raises(RetoldError):
        RemotePath("s3://bucket/../other")
    assert dataset_path("file:///x/d") == Path("/x/d")


def test_processes_race_on_a_store_that_loses_replies(
    server: S3Server, place: RemotePath, tmp_path: Path
) -> None:
    outcome = race(server, place, tmp_path, appenders=4, shards=4, keep_episodes=10, kills=3)
    assert outcome.commits >= 16


@pytest.mark.long
@pytest.mark.parametrize("turn", range(20))
def test_sixteen_processes_race_on_a_store_that_loses_replies(
    server: S3Server,
    place: RemotePath,
    tmp_path: Path,
    turn: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.take_requests()
    outcome = race(server, place, tmp_path, seed=turn)
    kinds = Counter(method for method, _, _ in server.take_requests())
    assert outcome.operations["collect"] == 800 and outcome.kills > 0
    with capsys.disabled():
        print(f"\nrace {turn} on a store: {outcome}, {kinds.total()} requests: {dict(kinds)}")


def race(server: S3Server, place: RemotePath, folder: Path, **sizes: int) -> Outcome:
    CommitLog.create(place)
    (folder / "acknowledged").mkdir()
    server.lose_replies(0.05)
    try:
        return run_race(Race(location=place, acknowledged=folder / "acknowledged", **sizes))
    finally:
        server.lose_replies(0)

"""Garbage is deleted, and nothing that a head, a tag, a pin or a writer needs."""

import subprocess
import time
from pathlib import Path

import pytest
from conftest import RETOLD
from small_datasets import append, append_tiny, grow_old, ids, retell
from test_dataset import SCHEMA, make_episode

from retold.collect.command import CollectConfig, collect
from retold.dataset.audit import audit_structure
from retold.dataset.compact import CompactConfig, compact
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.gc import GcConfig, collect_garbage
from retold.dataset.history import TagConfig, tag
from retold.dataset.log import CommitLog
from retold.dataset.pins import pin, pin_reader, read_pins
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_place import list_shards
from retold.dataset.shard_writer import write_raw_shard
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.errors import DatasetError, RetoldError


def test_gc_deletes_nothing_that_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "d"
    for number in range(5):
        append(path, number)
    tag(TagConfig(dataset=Path(f"{path}@0"), name="kept"))
    evict(EvictConfig(dataset=path, episodes=1))
    (path / "tmp" / "left").mkdir(parents=True)
    (path / "tmp" / "left" / "file").write_bytes(b"half a shard")
    write_raw_shard(path, [make_episode(90, 4)], SCHEMA)
    assert collect_garbage(GcConfig(dataset=path)).files == 0
    grow_old(path, days=8)
    with pin_at(path, 2):
        plan = collect_garbage(GcConfig(dataset=path, dry_run=True))
        assert not plan.deleted and plan.files > 0
        result = collect_garbage(GcConfig(dataset=path))
    assert [item.path for item in result.dropped] == [item.path for item in plan.dropped]
    reasons = sorted(item.reason for item in result.dropped)
    assert reasons == ["in no kept snapshot", "left by a killed writer", "never committed"]
    assert ids(path) == [4] and ids(Path(f"{path}@kept")) == [0]
    assert ids(Path(f"{path}@2")) == [0, 1, 2]
    with pytest.raises(DatasetError, match="dropped it in commit 7"):
        DatasetReader.open(Path(f"{path}@3"))
    assert audit_structure(path) == []
    assert collect_garbage(GcConfig(dataset=path)).snapshot is not None


def pin_at(path: Path, number: int) -> "object":
    return pin(path, "somebody", "a test", CommitLog.open(path).snapshot(number))


def test_gc_keeps_what_a_pinned_referrer_reads(tmp_path: Path) -> None:
    raw, told = tmp_path / "raw", tmp_path / "told"
    for number in range(3):
        append(raw, number, length=9)
    retell(raw, told)
    with DatasetReader.open(told) as reader, pin_reader(reader, "train", "a training"):
        evict(EvictConfig(dataset=raw, episodes=1))
        grow_old(raw, days=8)
        assert collect_garbage(GcConfig(dataset=raw)).files == 0
        for row in range(3):
            reader.read_episode(row)
    assert not list(raw.glob("pins/*"))
    grow_old(raw, days=8)
    assert collect_garbage(GcConfig(dataset=raw)).files == 2
    with DatasetReader.open(told) as reader, pytest.raises(DatasetError, match="not live") as error:
        reader.read_episode(0)
    assert str(raw) in str(error.value) and str(told) in str(error.value)


@pytest.mark.long
def test_gc_beside_a_training_takes_nothing_that_it_reads(tmp_path: Path) -> None:
    raw, told = tmp_path / "raw", tmp_path / "told"
    task = {"size": 7, "limit": 60}
    for first in (0, 4):
        collect(CollectConfig(task="maze", task_args=task, dataset=raw, first=first, episodes=4))
    relabel(RelabelConfig(source=raw, target=told, workers=0))
    needed = {path: set(list_shards(path)) for path in (raw, told)}
    command = [RETOLD, "train", tmp_path / "run", "--data", told, "--updates", "40"]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    rounds = 0
    while training.poll() is None:
        if not (read_pins(raw) and read_pins(told)):
            time.sleep(0.05)
            continue
        for path in (raw, told):
            evict(EvictConfig(dataset=path, episodes=1))
            collect_garbage(GcConfig(dataset=path, keep=0, grace=0))
            if read_pins(path):  # it goes when the training is over, and does not come back
                assert needed[path] <= set(list_shards(path))
                rounds += 1
    error = training.communicate()[1].decode()
    assert training.returncode == 0, error
    assert rounds > 2
    for path in (raw, told):
        collect_garbage(GcConfig(dataset=path, keep=0, grace=0))
        assert not needed[path] <= set(list_shards(path))


def test_gc_after_compaction_keeps_references(tmp_path: Path) -> None:
    raw, told = tmp_path / "raw", tmp_path / "told"
    for number in range(3):
        append(raw, number, length=9)
    retell(raw, told)
    compact(CompactConfig(dataset=raw))
    grow_old(raw, days=8)
    assert collect_garbage(GcConfig(dataset=raw)).files == 3
    with DatasetReader.open(told) as reader:
        for row in range(3):
            reader.read_episode(row)


def test_gc_and_a_writer_of_the_same_shard_agree(tmp_path: Path) -> None:
    path = tmp_path / "d"
    append(path, 0)
    entry = write_raw_shard(path, [make_episode(1, 4)], SCHEMA)
    grow_old(path, days=8)
    # The writer comes first: its shard is young again.
    assert write_raw_shard(path, [make_episode(1, 4)], SCHEMA) == entry
    assert collect_garbage(GcConfig(dataset=path)).files == 0
    # The gc comes first: the commit says so instead of naming a shard that is gone.
    grow_old(path, days=8)
    assert collect_garbage(GcConfig(dataset=path)).files == 1
    with pytest.raises(DatasetError, match="removed before it was committed"):
        CommitLog.open(path).append(operation="collect", added=[entry])
    entry = write_raw_shard(path, [make_episode(1, 4)], SCHEMA)
    CommitLog.open(path).append(operation="collect", added=[entry])
    assert ids(path) == [0, 1]


def test_a_damaged_pin_stops_gc(tmp_path: Path) -> None:
    path = tmp_path / "d"
    append_tiny(path, 0)
    (path / "pins").mkdir()
    (path / "pins" / "train.json").write_bytes(b'{"holder":"x"')
    with pytest.raises(RetoldError, match="train.json"):
        collect_garbage(GcConfig(dataset=path))

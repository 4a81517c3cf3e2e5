"""The cache of decoded arrays: equal windows, a budget, damage, eviction, and where it may lie."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunRetold
from numpy.testing import assert_array_equal
from test_dataset import make_episode, write

from retold.collect.command import CollectConfig, collect
from retold.dataset.array_cache import ArrayCache
from retold.dataset.cache_command import CacheConfig, CacheResult, cache_dataset
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.dataset.window_batch import WindowBatch
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.errors import DatasetError, UsageError


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Episodes with frames, text and nested leaves, in two shards."""
    path = tmp_path / "d"
    write(path, [make_episode(i, 20 + 7 * i) for i in range(3)])
    write(path, [make_episode(i, 20 + 7 * i) for i in range(3, 6)])
    return path


def fill(dataset: Path, folder: Path, **options: Any) -> CacheResult:
    return cache_dataset(CacheConfig(dataset=dataset, folder=folder, **options))


def flat(batch: WindowBatch) -> dict[str, Any]:
    arrays = dict(vars(batch))
    leaves = {**arrays.pop("observation"), **arrays.pop("previous_action")}
    return {**arrays, **leaves}


def assert_equal_windows(dataset: Path, cache: Path, **options: Any) -> None:
    with DatasetReader.open(dataset) as plain, DatasetReader.open(dataset, cache=cache) as cached:
        samplers = [
            WindowSampler([r], window_length=11, seed=4, **options) for r in (plain, cached)
        ]
        batches = [sampler.make_batch(7) for sampler in samplers]
        for number in range(8):
            one, two = (
                flat(sampler.sample_into(batch, number))
                for sampler, batch in zip(samplers, batches, strict=True)
            )
            assert one.keys() == two.keys()
            for name, values in one.items():
                assert_array_equal(two[name], values, err_msg=name)


def files(cache: Path) -> dict[str, bytes]:
    return {str(p.relative_to(cache)): p.read_bytes() for p in cache.rglob("*") if p.is_file()}


def test_windows_are_the_same_with_a_cache_and_come_from_it(mixed: Path, tmp_path: Path) -> None:
    result = fill(mixed, tmp_path / "cache")
    assert result.written > 0 and result.kept == result.evicted == result.replaced == 0
    assert all(leaf.shards == leaf.of_shards == 2 for leaf in result.leaves)
    assert_equal_windows(mixed, tmp_path / "cache")
    assert_equal_windows(mixed, tmp_path / "cache", resident_bytes=0, threads=1)
    for chunks in mixed.glob("shards/*/*/arrays/observation/frame/c"):
        for file in chunks.rglob("*"):
            if file.is_file():
                file.unlink()  # what is cached is not asked of the shards
    with DatasetReader.open(mixed, cache=tmp_path / "cache") as reader:
        sampler = WindowSampler([reader], window_length=11, seed=4)
        sampler.sample_into(sampler.make_batch(7), 0)


def test_variants_come_from_the_cached_arrays_of_their_source(tmp_path: Path) -> None:
    task = {"size": 7, "limit": 30}
    collect(CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw", episodes=6))
    relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "retold", workers=0))
    result = fill(tmp_path / "retold", tmp_path / "cache")
    assert result.written > 0
    assert_equal_windows(tmp_path / "retold", tmp_path / "cache")
    again = fill(tmp_path / "raw", tmp_path / "cache")
    assert (again.written, again.kept) == (0, result.written)


def test_a_budget_holds_the_arrays_that_save_most_for_their_bytes(
    mixed: Path, tmp_path: Path
) -> None:
    whole = fill(mixed, tmp_path / "whole")
    budget = 12_000
    result = fill(mixed, tmp_path / "cache", bytes=budget)
    assert 0 < result.written < whole.written
    assert sum(map(len, files(tmp_path / "cache").values())) <= budget
    rows = {leaf.leaf: leaf for leaf in result.leaves}
    assert rows["reset"].shards == 2  # a byte a step
    assert rows["observation/frame"].shards == 0  # thousands
    assert_equal_windows(mixed, tmp_path / "cache")


def test_a_grown_dataset_only_adds(mixed: Path, tmp_path: Path) -> None:
    first = fill(mixed, tmp_path / "cache")
    before = files(tmp_path / "cache")
    write(mixed, [make_episode(7, 30)])
    assert_equal_windows(mixed, tmp_path / "cache")  # the new shard is not in it yet
    result = fill(mixed, tmp_path / "cache")
    assert (result.kept, result.written) == (first.written, first.written // 2)
    after = files(tmp_path / "cache")
    assert {name: after[name] for name in before} == before


def test_entries_that_nobody_wants_make_room(mixed: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", [make_episode(9, 80)])
    fill(tmp_path / "other", tmp_path / "cache")
    result = fill(mixed, tmp_path / "cache")
    assert result.evicted == 0  # there is room for both
    alone = fill(mixed, tmp_path / "alone")
    result = fill(mixed, tmp_path / "cache", bytes=alone.bytes + 20_000)
    assert result.evicted > 0 and result.bytes <= result.budget_bytes
    assert_equal_windows(mixed, tmp_path / "cache")
    assert_equal_windows(tmp_path / "other", tmp_path / "cache")


@pytest.mark.parametrize("suffix", [".npy", ".json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete", "garbage"])
def test_a_damaged_entry_is_noticed_and_replaced(
    mixed: Path, tmp_path: Path, suffix: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(mixed, tmp_path / "cache")
    whole = files(tmp_path / "cache")
    rng = np.random.default_rng(0)
    for file in sorted((tmp_path / "cache").glob(f"*/*/*{suffix}")):
        content = bytearray(file.read_bytes())
        if damage == "flip":
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        elif damage == "truncate":
            del content[rng.integers(1, len(content)) :]
        elif damage == "empty":
            content.clear()
        elif damage == "garbage":
            content[:] = rng.bytes(len(content))
        file.unlink() if damage == "delete" else file.write_bytes(content)
    assert_equal_windows(mixed, tmp_path / "cache")
    assert ("this cached array is damaged" in caplog.text) == (damage != "delete")
    result = fill(mixed, tmp_path / "cache")
    assert result.kept == 0 and result.written > 0
    assert files(tmp_path / "cache") == whole


def test_another_arrays_file_is_not_taken_for_it(mixed: Path, tmp_path: Path) -> None:
    fill(mixed, tmp_path / "cache")
    one, two = sorted((tmp_path / "cache").glob("*/*/reward.npy"))
    for suffix in (".npy", ".json"):
        two.with_suffix(suffix).write_bytes(one.with_suffix(suffix).read_bytes())
    assert_equal_windows(mixed, tmp_path / "cache")
    assert fill(mixed, tmp_path / "cache").replaced == 1


def test_a_cache_never_lies_in_a_dataset_or_among_other_files(mixed: Path, tmp_path: Path) -> None:
    before = files(mixed)
    for folder in (mixed, mixed / "cache", mixed / "shards" / "x"):
        with pytest.raises(UsageError, match="lies in the dataset"):
            fill(mixed, folder)
    (tmp_path / "link").symlink_to(mixed)
    with pytest.raises(UsageError, match="lies in the dataset"):
        fill(mixed, tmp_path / "link" / "cache")
    assert files(mixed) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(DatasetError, match="this is no cache"):
        fill(mixed, tmp_path / "full")
    with pytest.raises(DatasetError, match="this is no cache"):
        DatasetReader.open(mixed, cache=tmp_path / "nowhere")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "cache.json").write_text('{"cache_version": 99}')
    with pytest.raises(DatasetError, match="version 99"):
        ArrayCache.open(tmp_path / "old")
    with pytest.raises(UsageError, match="at least 1"):
        CacheConfig(dataset=mixed, folder=tmp_path / "cache", bytes=0)


def _fill_often(dataset: Path, folder: Path, budget_bytes: int) -> None:
    for _ in range(6):
        fill(dataset, folder, bytes=budget_bytes)


def test_two_processes_may_fill_one_cache_at_once(mixed: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", [make_episode(9, 80)])
    budget = fill(mixed, tmp_path / "alone").bytes + 20_000  # they evict each other's
    context = multiprocessing.get_context("fork")
    jobs = [
        context.Process(target=_fill_often, args=(dataset, tmp_path / "cache", budget))
        for dataset in (mixed, mixed, tmp_path / "other", mixed)
    ]
    for job in jobs:
        job.start()
    while any(job.is_alive() for job in jobs):
        if (tmp_path / "cache" / "cache.json").exists():
            assert_equal_windows(mixed, tmp_path / "cache")
    for job in jobs:
        job.join()
        assert job.exitcode == 0
    assert not list((tmp_path / "cache").rglob("*.tmp"))
    result = fill(mixed, tmp_path / "cache", bytes=budget)
    assert result.replaced == 0 and result.bytes <= budget
    assert_equal_windows(mixed, tmp_path / "cache")


def test_the_commands_fill_a_cache_and_train_from_it(tmp_path: Path, run_retold: RunRetold) -> None:
    task = {"size": 7, "limit": 30}
    collect(CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw", episodes=8))
    relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "retold", workers=0))
    CommitLog.open(tmp_path / "raw")
    done = run_retold("cache", tmp_path / "retold", tmp_path / "cache", "--bytes", "1000000")
    assert done.returncode == 0, done.stderr
    assert "of bytes" in done.stdout and "reset" in done.stdout
    flags = ("--data", tmp_path / "retold", "--updates", "3", "--context-length", "16")
    for run, cache in (("plain", ()), ("cached", ("--cache", tmp_path / "cache"))):
        done = run_retold("train", tmp_path / run, *flags, *cache)
        assert done.returncode == 0, done.stderr
    weights = [
        next((tmp_path / run / "policies").glob("*/policy.safetensors")).read_bytes()
        for run in ("plain", "cached")
    ]
    assert weights[0] == weights[1]
    done = run_retold("cache", tmp_path / "retold", tmp_path / "retold" / "cache")
    assert done.returncode == 2 and "no part of one" in done.stderr

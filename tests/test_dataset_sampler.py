"""The sampler: batches equal the windows they are made of, draws have the chances they state."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from test_dataset import make_episode, write

from retold.collect.command import CollectConfig, collect
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.dataset.sampler import WindowSampler
from retold.dataset.sources import parse_moved
from retold.dataset.window_batch import WindowBatch
from retold.dataset.window_draws import WindowDraws, worker_draws
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.episode import Window
from retold.schemas.errors import DatasetError, FormatError, UsageError


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes with frames, text and nested leaves, in three shards."""
    path = tmp_path_factory.mktemp("mixed") / "d"
    for first in (0, 6, 9):
        write(path, [make_episode(i, 3 + 37 * i % 150) for i in range(first, first + 3)])
    return path


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A raw dataset of two shards and its variants."""
    folder = tmp_path_factory.mktemp("maze")
    for first in (0, 6):
        task = {"size": 7, "limit": 60}
        collect(
            CollectConfig(
                task="maze", task_args=task, dataset=folder / "raw", first=first, episodes=6
            )
        )
    relabel(RelabelConfig(source=folder / "raw", target=folder / "retold", workers=0))
    return folder / "raw", folder / "retold"


def assert_holds(batch: WindowBatch, place: int, window: Window) -> None:
    """That a batch's row is the window, with zeros after it and what went before in front."""
    length, most = window.length, batch.window_length
    assert (batch.length[place], batch.start[place]) == (length, window.start)
    assert batch.dataset[place] == window.dataset
    for path, rows in window.observation.items():
        out = batch.observation[path][place]
        assert_array_equal(out[: length + 1], rows, err_msg=path)
        assert all(
            not np.any(row != "" if row.dtype == object else row) for row in out[length + 1 :, None]
        )
    for path, rows in window.action.items():
        out = batch.previous_action[path][place]
        assert_array_equal(out[1 : length + 1], rows, err_msg=path)
        before = 0 if window.previous_action is None else window.previous_action[path]
        assert_array_equal(out[0], np.broadcast_to(before, out[0].shape), err_msg=path)
        assert not out[length + 1 :].any()
    for name, previous in (("reward", window.previous_reward), ("reset", window.previous_reset)):
        out = getattr(batch, f"previous_{name}")[place]
        assert_array_equal(out[1 : length + 1], getattr(window, name), err_msg=name)
        assert out[0] == previous and not out[length + 1 :].any()
    for name in ("terminated", "truncated"):
        out = getattr(batch, name)[place]
        assert_array_equal(out[:length], getattr(window, name), err_msg=name)
        assert not out[length:].any()
    assert_array_equal(batch.progress[place, : length + 1], window.progress)
    assert not batch.progress[place, length + 1 :].any()
    assert_array_equal(batch.is_real[place], np.arange(most) < length)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"resident_bytes": 0, "threads": 1},
        {"resident_bytes": 600, "cache_bytes": 100_000},
        {"window_length": None, "cache_bytes": 10_000_000},
        {"cut": "aligned", "unit": "episodes"},
        {"cut": "drop", "window_length": 9},
    ],
)
def test_a_batch_holds_the_windows_of_its_draw(
    mixed: Path, maze: tuple[Path, Path], options: dict[str, Any]
) -> None:
    settings = {"window_length": 17, "seed": 3, **options}
    for paths in ([mixed], [maze[1]], list(maze)):
        readers = [DatasetReader.open(path) for path in paths]
        sampler = WindowSampler(readers, **settings)
        batch = sampler.make_batch(9)
        for number in range(6):  # one batch for all: nothing of an earlier draw may remain
            assert sampler.sample_into(batch, number) is batch
            for place, window in enumerate(sampler.draw(number, 9)):
                assert_holds(batch, place, window)
        for reader in readers:
            reader.close()


def test_large_chunks_decode_on_two_threads_to_the_same_values(tmp_path: Path) -> None:
    collect(
        CollectConfig(
            task="crafter",
            task_args={"observation": "pixels", "limit": 40},
            dataset=tmp_path / "d",
            episodes=3,
        )
    )
    with DatasetReader.open(tmp_path / "d") as reader:
        sampler = WindowSampler([reader], window_length=33, seed=0, threads=2)
        batch = sampler.make_batch(5)
        for number in range(4):
            sampler.sample_into(batch, number)
            for place, window in enumerate(sampler.draw(number, 5)):
                assert_holds(batch, place, window)


def test_draws_depend_on_snapshot_seed_and_number_alone(mixed: Path) -> None:
    with DatasetReader.open(mixed) as one, DatasetReader.open(mixed) as two:
        first = WindowSampler([one], window_length=8, seed=5)
        again = WindowSampler([two], window_length=8, seed=5)
        other = WindowSampler([two], window_length=8, seed=6)
        again.choose(1, 64)
        draws = [sampler.choose(4, 64) for sampler in (first, again, other)]
        assert_array_equal(draws[0].row, draws[1].row)
        assert_array_equal(draws[0].start, draws[1].start)
        assert (draws[0].row != draws[2].row).any()


def test_workers_share_the_numbers_out() -> None:
    streams = [worker_draws(7, worker=worker, workers=3) for worker in range(3)]
    numbers = [next(stream) for _ in range(5) for stream in streams]
    assert numbers == list(range(7, 22))
    with pytest.raises(UsageError, match="Worker 3 is not among 3"):
        worker_draws(0, worker=3, workers=3)


LENGTHS = np.array([3, 10, 25, 4, 40])


def drawn(window_length: int | None, **options: Any) -> tuple[Any, Any, Any]:
    """Rows, starts and lengths of 60,000 windows."""
    defaults: dict[str, Any] = {"weights": None, "start_share": 0.0, "unit": "steps", "cut": "pad"}
    draws = WindowDraws([LENGTHS], window_length=window_length, seed=1, **{**defaults, **options})
    parts = [draws.draw(number, 1000) for number in range(60)]
    row, start, length = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("row", "start", "length")
    )
    assert (start >= 0).all() and (start + length <= LENGTHS[row]).all() and (length >= 1).all()
    return row, start, length


def assert_shares(values: Any, expected: Any) -> None:
    """Chi-squared below its 99.99 % point (normal approximation), for a fixed seed."""
    expected = np.asarray(expected, float)
    counts = np.bincount(values, minlength=len(expected))
    wanted = expected / expected.sum() * len(values)
    assert not counts[wanted == 0].any()
    possible = wanted > 0
    degrees = possible.sum() - 1
    statistic = ((counts - wanted)[possible] ** 2 / wanted[possible]).sum()
    assert statistic < degrees + 4 * np.sqrt(2 * degrees) + 4, (counts, wanted)


@pytest.mark.parametrize(
    ("options", "chances"),
    [
        ({"unit": "steps"}, LENGTHS),
        ({"unit": "episodes"}, np.ones(5)),
        ({"unit": "steps", "cut": "drop"}, [0, 10, 25, 0, 40]),
        ({"unit": "episodes", "cut": "drop"}, [0, 1, 1, 0, 1]),
        ({"unit": "steps", "cut": "aligned"}, LENGTHS),
        ({"unit": "episodes", "cut": "aligned"}, np.ones(5)),
    ],
)
def test_episodes_have_the_chances_that_unit_and_cut_give(
    options: dict[str, Any], chances: Any
) -> None:
    row, start, length = drawn(8, **options)
    assert_shares(row, chances)
    if options.get("cut") == "aligned":
        assert (start % 8 == 0).all()
    else:
        assert_array_equal(length, np.minimum(LENGTHS[row], 8))
        assert_shares(start[row == 4], np.ones(33))  # every place where a window fits
    assert_shares(drawn(None, unit="episodes")[0], np.ones(5))


def test_aligned_windows_hold_every_transition_equally_often() -> None:
    row, start, length = drawn(8, cut="aligned")
    tiles = {
        (r, s): n for r, s, n in zip(row.tolist(), start.tolist(), length.tolist(), strict=True)
    }
    names = sorted(tiles)
    assert_shares(
        np.array([names.index(pair) for pair in zip(row.tolist(), start.tolist(), strict=True)]),
        [tiles[name] for name in names],
    )


def test_a_share_of_long_windows_starts_at_the_beginning() -> None:
    row, start, _ = drawn(8, start_share=0.25)
    at_start = float((start[row == 4] == 0).mean())
    assert abs(at_start - (0.25 + 0.75 / 33)) < 0.01  # 4 standard deviations of 32,000 windows


def test_mixtures_have_the_weights_asked_for(maze: tuple[Path, Path]) -> None:
    readers = [DatasetReader.open(path) for path in maze]
    sampler = WindowSampler(readers, window_length=8, seed=0, weights=(3.0, 1.0))
    dataset = np.concatenate([sampler.choose(number, 500).dataset for number in range(40)])
    assert_shares(dataset, [3, 1])
    sampler = WindowSampler(readers, window_length=8, seed=0, weights=(1.0, 0.0))
    assert not sampler.choose(0, 500).dataset.any()


def test_a_growing_dataset_is_followed_and_a_pinned_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "d"
    write(path, [make_episode(0, 30)])
    with DatasetReader.open(path) as reader:
        pinned = WindowSampler([reader], window_length=5, seed=0)
        before = pinned.choose(3, 32)
        write(path, [make_episode(i, 30) for i in range(1, 4)])
        assert_array_equal(pinned.choose(3, 32).start, before.start)
        with reader.follow() as newest:
            assert (len(reader), len(newest)) == (1, 4)
            sampler = WindowSampler([newest], window_length=5, seed=0)
            assert Counter(sampler.choose(0, 400).row.tolist()).keys() == {0, 1, 2, 3}
            assert newest.shard_of(0)[0] is reader.shard_of(0)[0]
        with DatasetReader.open(path, snapshot=0) as old:
            assert_array_equal(
                WindowSampler([old], window_length=5, seed=0).choose(3, 32).start, before.start
            )


def test_samplers_say_what_cannot_be_drawn(mixed: Path, tmp_path: Path) -> None:
    with DatasetReader.open(mixed) as reader:
        with pytest.raises(DatasetError, match="no episode has 9999 transitions"):
            WindowSampler([reader], window_length=9999, seed=0, cut="drop")
        with pytest.raises(UsageError, match="window length is 0"):
            WindowSampler([reader], window_length=0, seed=0)
        with pytest.raises(UsageError, match="2 weights for 1 datasets"):
            WindowSampler([reader], window_length=1, seed=0, weights=(1.0, 1.0))
        batch = WindowSampler([reader], window_length=4, seed=0).make_batch(2)
        with pytest.raises(UsageError, match="windows of 4 transitions"):
            WindowSampler([reader], window_length=5, seed=0).sample_into(batch, 0)
    CommitLog.create(tmp_path / "d").append(operation="relabel")
    with DatasetReader.open(tmp_path / "d") as reader, pytest.raises(DatasetError, match="live"):
        WindowSampler([reader], window_length=5, seed=0)


def test_a_dangling_variant_is_an_error_that_names_both_datasets(tmp_path: Path) -> None:
    task = {"size": 7, "limit": 20}
    collect(CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw", episodes=2))
    relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "retold", workers=0))
    log = CommitLog.open(tmp_path / "raw")
    log.append(operation="evict", removed=[shard.shard_id for shard in log.live_shards()])
    named = pytest.raises(DatasetError, match="retold: episode .* of .*raw .* is not live")
    with DatasetReader.open(tmp_path / "retold") as reader, named:
        WindowSampler([reader], window_length=5, seed=0)


def test_a_damaged_chunk_is_never_sampled(tmp_path: Path) -> None:
    write(tmp_path / "d", [make_episode(0, 50)])
    (file,) = (tmp_path / "d").glob("shards/*/*/arrays/observation/frame/c/0/0/0/0")
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    with DatasetReader.open(tmp_path / "d") as reader:
        sampler = WindowSampler([reader], window_length=5, seed=0)
        with pytest.raises(FormatError, match="frame"):
            sampler.sample_into(sampler.make_batch(4), 0)


def test_a_moved_source_is_found_where_it_is_said_to_be(tmp_path: Path) -> None:
    task = {"size": 7, "limit": 20}
    collect(CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw", episodes=2))
    relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "retold", workers=0))
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    told = tmp_path / "retold"
    with DatasetReader.open(told) as reader, pytest.raises(DatasetError, match="was not found"):
        WindowSampler([reader], window_length=5, seed=0)
    dataset_id = CommitLog.open(tmp_path / "elsewhere").dataset_id
    for old in (dataset_id, "../raw", str(tmp_path / "raw")):
        moved = parse_moved([f"{old}={tmp_path / 'elsewhere'}"], [told])
        with DatasetReader.open(told, sources=moved) as reader:
            sampler = WindowSampler([reader], window_length=5, seed=0)
            sampler.sample_into(sampler.make_batch(4), 0)
    with pytest.raises(UsageError, match="no variant refers to other"):
        parse_moved(["other=x"], [told])
    with pytest.raises(UsageError, match="written OLD=NEW"):
        parse_moved(["x"], [told])

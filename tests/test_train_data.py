"""Windows that are drawn ahead: the same, in the same order, and of the right snapshot."""

from pathlib import Path

import pytest
from test_train_history import LAMPS, play_lamps

from retold.dataset.log import CommitLog
from retold.dataset.shard_writer import write_raw_shard
from retold.schemas.errors import FormatError
from retold.train.batch import Batch
from retold.train.config import TrainConfig
from retold.train.data import TrainingData


def append(path: Path, *numbers: int) -> None:
    episodes = [play_lamps(0, number, 7) for number in numbers]
    log = CommitLog.create(path)
    log.append(operation="collect", added=[write_raw_shard(path, episodes, LAMPS)])


def small(run: Path, raw: Path, updates: int = 9) -> TrainConfig:
    return TrainConfig(run=run, data=(raw,), updates=updates, batch_size=3, context_length=4)


def content(batches: list[Batch]) -> list[object]:
    return [
        [b.lengths, b.numbers, b.action.tolist(), b.reward.tolist(), b.inputs.step.tolist()]
        for b in batches
    ]


def test_windows_drawn_ahead_are_those_drawn_when_they_are_asked_for(tmp_path: Path) -> None:
    append(tmp_path / "raw", *range(1, 9))
    config = small(tmp_path / "run", tmp_path / "raw")
    with TrainingData(config, {}) as data:
        ahead = [(content(data.draw(n, 0)), data.next_draw, data.facts(n)) for n in range(9)]
    alone = []
    for number in range(9):
        with TrainingData(config, {}, next_draw=number) as data:
            batches = content(data.draw(number, 0))
            alone.append((batches, data.next_draw, data.facts(number)))
    assert ahead == alone
    assert len({str(batches) for batches, _, _ in ahead}) > 1


def test_what_was_drawn_ahead_is_dropped_when_the_data_grow(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    append(raw, 1)
    config = small(tmp_path / "run", raw)
    with TrainingData(config, {}) as data:
        data.draw(0, 0)
        append(raw, *range(2, 9))
        data.reopen({})
        found = [content(data.draw(number, 0)) for number in (1, 2)]
    with TrainingData(config, {}, next_draw=1) as data:
        assert found == [content(data.draw(number, 0)) for number in (1, 2)]


def test_an_error_comes_at_the_update_that_it_belongs_to(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    append(raw, *range(1, 5))
    config = small(tmp_path / "run", raw)
    with TrainingData(config, {}) as data:
        data.draw(0, 0)
        assert data._ahead is not None
        data._ahead[1].result()

        def fail(*_: object, **__: object) -> Batch:
            raise FormatError("a chunk is damaged")

        data._batches.read = fail  # type: ignore[method-assign]
        assert data.draw(1, 0)
        with pytest.raises(FormatError, match="damaged"):
            data.draw(2, 0)
    with TrainingData(config, {}) as data:  # an error that nobody waits for is nobody's
        data._batches.read = fail  # type: ignore[method-assign]
        data._ahead = 0, data._thread.submit(data._draw, 0, 0, 0)


def test_nothing_is_drawn_beyond_the_last_update(tmp_path: Path) -> None:
    append(tmp_path / "raw", *range(1, 5))
    with TrainingData(small(tmp_path / "run", tmp_path / "raw", updates=2), {}) as data:
        data.draw(0, 0)
        assert data._ahead is not None
        data.draw(1, 0)
        assert data._ahead is None


def test_tensors_of_an_update_outlive_the_next_draw(tmp_path: Path) -> None:
    append(tmp_path / "raw", *range(1, 9))
    with TrainingData(small(tmp_path / "run", tmp_path / "raw"), {}) as data:
        batches = data.draw(0, 0)
        before = content(batches)
        assert data._ahead is not None
        data._ahead[1].result()
        data.draw(1, 0)
        assert content(batches) == before

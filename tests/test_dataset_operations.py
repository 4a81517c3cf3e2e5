"""Log operations: evict, compact, filter, split, merge, tags, time travel, gc, checkpoints."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_datasets import append, append_tiny, ids, retell
from test_dataset import assert_equal, make_episode

from retold.cli.__main__ import main
from retold.dataset.audit import audit_structure
from retold.dataset.checkpoint import CHECKPOINT_EVERY
from retold.dataset.compact import CompactConfig, compact
from retold.dataset.divergence import find_divergence
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.filter import FilterConfig, filter_dataset
from retold.dataset.history import DiffConfig, LogConfig, TagConfig, diff, list_commits, tag
from retold.dataset.log import CommitLog
from retold.dataset.merge import MergeConfig, merge
from retold.dataset.reader import DatasetReader
from retold.dataset.split import SplitConfig, split
from retold.schemas.errors import DatasetError, RetoldError, UsageError


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"episodes": 4}, [4, 5, 6, 7]),
        ({"steps": 22}, [4, 5, 6, 7]),
        ({"episodes": 3}, [6, 7, 5]),
        ({"episodes": 6, "steps": 10}, [6, 7]),
        ({"episodes": 99}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_evict_keeps_the_newest_episodes(
    tmp_path: Path, limits: dict[str, int], expected: list[int]
) -> None:
    path = tmp_path / "d"
    for first in range(0, 8, 2):
        append(path, first, first + 1)
    result = evict(EvictConfig(dataset=path, **limits))
    assert sorted(ids(path)) == sorted(expected)
    assert result.episodes == len(expected) and result.evicted == 8 - len(expected)
    assert len(ids(Path(f"{path}@3"))) == 8
    assert audit_structure(path) == []


def test_evict_by_bytes_takes_whole_shards_and_never_the_last(tmp_path: Path) -> None:
    path = tmp_path / "d"
    for number in range(4):
        append_tiny(path, number)
    size = CommitLog.open(path).live_shards()[-1].bytes
    assert evict(EvictConfig(dataset=path, bytes=int(2.5 * size))).evicted == 2
    with pytest.raises(DatasetError, match="no episode would stay"):
        evict(EvictConfig(dataset=path, bytes=10))
    assert ids(path) == [2, 3]


def test_compact_keeps_episodes_and_their_age(tmp_path: Path) -> None:
    path = tmp_path / "d"
    for number in range(6):
        append(path, number, length=5 + number)
    result = compact(CompactConfig(dataset=path))
    assert (result.shards_before, result.shards, result.episodes) == (6, 1, 6)
    append(path, 6)
    with DatasetReader.open(path) as reader:
        for row in range(6):
            assert_equal(reader.read_episode(row), make_episode(row, 5 + row))
    evict(EvictConfig(dataset=path, episodes=3))
    assert sorted(ids(path)) == [4, 5, 6]
    compact(CompactConfig(dataset=path))
    evict(EvictConfig(dataset=path, episodes=2))
    assert sorted(ids(path)) == [5, 6]
    assert compact(CompactConfig(dataset=path)).shards == 1


def test_compact_changes_the_profile_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "d"
    append(path, 0, length=200)
    result = compact(CompactConfig(dataset=path, profile="small"))
    assert result.bytes != result.bytes_before
    with DatasetReader.open(path) as reader:
        assert reader.shard_reader(reader.shards[0].shard_id).manifest.profile == "small"
        assert_equal(reader.read_episode(0), make_episode(0, 200))
    assert compact(CompactConfig(dataset=path, profile="small")).snapshot == result.snapshot


def test_materialized_variants_are_what_they_were_without_their_source(tmp_path: Path) -> None:
    raw, told, whole = (tmp_path / name for name in ("raw", "told", "whole"))
    append(raw, 0, 1, 2, length=9)
    retell(raw, told)
    with DatasetReader.open(told) as reader:
        before = [reader.read_episode(row) for row in range(len(reader))]
    compact(CompactConfig(dataset=told, output=whole, materialize=True))
    raw.rename(tmp_path / "elsewhere")
    with DatasetReader.open(whole) as reader:
        assert reader.dataset_id != CommitLog.open(told).dataset_id
        for row, episode in enumerate(before):
            found = reader.read_episode(row)
            assert found.record == replace(episode.record, source_dataset_id=None)
            assert_equal(replace(found, record=episode.record), episode)
    assert audit_structure(whole) == []


def test_filter_copies_what_meets_the_condition(tmp_path: Path) -> None:
    path, output = tmp_path / "d", tmp_path / "o"
    append(path, 0, 1, length=5)
    append(path, 2, 3, length=9)
    filter_dataset(FilterConfig(dataset=path, output=output, where="length > 5 or index in [1]"))
    assert ids(output) == [1, 2, 3]
    with DatasetReader.open(output) as reader:
        assert_equal(reader.read_episode(0), make_episode(1, 5))
        assert reader.log.read(0).details["parents"] == [CommitLog.open(path).head().to_json()]  # type: ignore[union-attr]
        # The shard that is taken whole is the same shard.
        assert reader.shards[1].shard_id == CommitLog.open(path).live_shards()[1].shard_id
    assert audit_structure(output) == []


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("lenght > 3", "Did you mean 'length'"),
        ("__import__('os').system('true')", "cannot"),
        ("length.real", "cannot"),
        ("length >", "cannot be read"),
        ("length < 'a'", "Compare values of one kind"),
        ("length % 0 == 1", "cannot be evaluated"),
        ("length > 99", "none of 1 episodes"),
        ("seed is None", "cannot"),
    ],
)
def test_a_condition_that_cannot_hold_is_one_sentence(
    tmp_path: Path, where: str, words: str
) -> None:
    append_tiny(tmp_path / "d", 0)
    with pytest.raises(RetoldError, match=words):
        filter_dataset(FilterConfig(dataset=tmp_path / "d", output=tmp_path / "o", where=where))
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


def test_values_that_are_not_there_meet_no_comparison(tmp_path: Path) -> None:
    append_tiny(tmp_path / "d", 0)
    for where, count in (
        ("policy_update < 3", 0),
        ("policy_update == None", 1),
        ("not success", 1),
    ):
        if count:
            filter_dataset(
                FilterConfig(dataset=tmp_path / "d", output=tmp_path / where[:4], where=where)
            )
        else:
            with pytest.raises(DatasetError, match="none of 1"):
                filter_dataset(
                    FilterConfig(dataset=tmp_path / "d", output=tmp_path / "o", where=where)
                )


def test_a_split_keeps_variants_with_their_source(tmp_path: Path) -> None:
    raw, told = tmp_path / "raw", tmp_path / "told"
    append(raw, *range(30))
    retell(raw, told)
    for path in (raw, told):
        outputs = (path.with_name(f"{path.name}-{side}") for side in ("train", "test"))
        train, test = outputs
        result = split(SplitConfig(dataset=path, train=train, test=test, share=0.3))
        assert result.train_episodes + result.test_episodes == 30
        assert audit_structure(train) == [] and audit_structure(test) == []
    sides = [set(ids(tmp_path / f"raw-{side}")) for side in ("train", "test")]
    for side, own, other in (("train", *sides), ("test", *reversed(sides))):
        with DatasetReader.open(tmp_path / f"told-{side}") as reader:
            sources = {int(i, 16) for i in reader.table["source_episode_id"].to_pylist()}
            reader.read_episode(0)
        assert sources == own and not sources & other


def test_merged_variants_find_their_source_in_the_new_dataset(tmp_path: Path) -> None:
    raw, told, output = tmp_path / "raw", tmp_path / "told", tmp_path / "all"
    append(raw, 0, 1, length=9)
    retell(raw, told)
    with DatasetReader.open(told) as reader:
        before = reader.read_episode(1)
    assert merge(MergeConfig(output=output, data=(raw, told))).episodes == 4
    for path in (raw, told):
        path.rename(tmp_path / f"{path.name}-away")
    with DatasetReader.open(output) as reader:
        assert np.array_equal(reader.read_episode(3).reward, before.reward)
        assert reader.read_episode(3).record.source_dataset_id == reader.dataset_id
    assert audit_structure(output) == []
    parts = (output.with_name("train"), output.with_name("test"))
    split(SplitConfig(dataset=output, train=parts[0], test=parts[1], share=0.5, seed=1))
    assert sorted(len(ids(part)) for part in parts) == [2, 2]


def test_copies_that_parted_are_named_and_merged_without_what_one_evicted(tmp_path: Path) -> None:
    import shutil

    one, two = tmp_path / "one", tmp_path / "two"
    append(one, 0)
    append(one, 1)
    shutil.copytree(one, two)
    assert find_divergence(CommitLog.open(one), CommitLog.open(two)) is None
    append(one, 2)
    evict(EvictConfig(dataset=two, episodes=1))
    append(two, 3)
    parted = find_divergence(CommitLog.open(one), CommitLog.open(two))
    assert parted is not None and parted.number == 2
    assert "retold merge" in parted.refusal and "commits 2 differ" in parted.refusal
    result = merge(MergeConfig(output=tmp_path / "all", data=(one, two)))
    assert sorted(ids(tmp_path / "all")) == [1, 2, 3]
    assert (result.episodes, result.shared, result.evicted) == (3, 1, 1)
    assert diff(DiffConfig(one=one, two=two)).history.endswith("different ways at commit 2")


def test_an_episode_is_never_added_twice(tmp_path: Path) -> None:
    path = tmp_path / "d"
    append_tiny(path, 0, 1)
    with pytest.raises(DatasetError, match="is in the dataset already"):
        append_tiny(path, 1, 2)
    append_tiny(path, 0, 1)  # the same shard once more is no change
    assert ids(path) == [0, 1]


def test_tags_and_numbers_name_snapshots_that_stay(tmp_path: Path) -> None:
    path = tmp_path / "d"
    append_tiny(path, 0)
    append_tiny(path, 1)
    tag(TagConfig(dataset=Path(f"{path}@0"), name="first"))
    tag(TagConfig(dataset=Path(f"{path}@0"), name="first"))
    with pytest.raises(DatasetError, match="names commit 0 for good"):
        tag(TagConfig(dataset=path, name="first"))
    with pytest.raises(UsageError, match="cannot be a tag"):
        tag(TagConfig(dataset=path, name="../up"))
    assert ids(Path(f"{path}@first")) == [0] and ids(Path(f"{path}@1")) == [0, 1]
    lines = list_commits(LogConfig(dataset=path)).commits
    assert [line.operation for line in lines] == ["tag", "collect", "collect"]
    assert lines[-1].tags == "first"
    for name in ("last", "7", "-1", ""):
        with pytest.raises(DatasetError):
            DatasetReader.open(Path(f"{path}@{name}"))
    with pytest.raises(UsageError, match="a snapshot never changes"):
        evict(EvictConfig(dataset=Path(f"{path}@0"), episodes=1))
    with pytest.raises(UsageError, match="names a snapshot"):
        CommitLog.create(Path(f"{path}@0"))
    difference = diff(DiffConfig(one=Path(f"{path}@0"), two=path))
    assert (difference.only_one, difference.only_two, difference.same) == (0, 1, 1)


def test_opening_starts_at_a_checkpoint_and_does_without(tmp_path: Path) -> None:
    path = tmp_path / "d"
    for number in range(CHECKPOINT_EVERY + 3):
        append_tiny(path, number)
    evict(EvictConfig(dataset=path, episodes=CHECKPOINT_EVERY))
    expected = ids(path)
    table, description, _ = sorted((path / "checkpoints").iterdir(), reverse=True)
    assert (table.suffix, description.suffix) == (".parquet", ".json")
    log = CommitLog.open(path)
    assert log.live_shards() and log._first == CHECKPOINT_EVERY - 1
    assert [commit.number for commit in log.commits()] == list(range(CHECKPOINT_EVERY + 4))
    # Rows come from the checkpoint: tables that it covers are not opened.
    (shard,) = path.glob(f"shards/*/{log.live_shards()[0].shard_id}")
    (shard / "episodes.parquet").rename(tmp_path / "away")
    assert ids(path) == expected
    (tmp_path / "away").rename(shard / "episodes.parquet")
    for file in (table, description):
        original = file.read_bytes()
        for content in (original[:-9], b"", original.replace(b"0", b"1", 1), b"garbage"):
            file.write_bytes(content)
            assert ids(path) == expected
        assert any(str(file) in str(finding) for finding in audit_structure(path))
        file.write_bytes(original)
    assert audit_structure(path) == []


def test_a_lost_reply_does_not_commit_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d"
    append_tiny(path, 0)
    real: Callable[..., None] = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        raise OSError(5, "the reply was lost")

    monkeypatch.setattr("os.link", link)
    append_tiny(path, 1)
    monkeypatch.undo()
    assert ids(path) == [0, 1]
    assert len(list((path / "commits").glob("*.json"))) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["evict", "{d}"],
        ["evict", "{none}", "--episodes", "3"],
        ["evict", "{d}@9", "--episodes", "3"],
        ["compact", "{d}", "--materialize"],
        ["compact", "{none}"],
        ["filter", "{d}", "{d}", "--where", "length > 0"],
        ["split", "{d}", "{none}", "{none}"],
        ["split", "{d}", "{none}", "{other}", "--share", "1"],
        ["merge", "{none}", "--data", "{d}"],
        ["merge", "{none}", "--data", "{d}", "--data", "{other}"],
        ["gc", "{d}", "--keep", "-1"],
        ["tag", "{d}@4", "x"],
        ["tag", "{d}", "3"],
        ["log", "{none}"],
        ["diff", "{d}", "{d}@8"],
        ["info", "{d}@tag"],
        ["audit", "{none}"],
        ["repair", "{none}", "{other}"],
        ["repair", "{d}", "{d}"],
        ["migrate", "{d}", "{d}"],
    ],
    ids=" ".join,
)
def test_mistakes_are_one_sentence_and_change_nothing(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    append_tiny(tmp_path / "d", 0)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    places = {name: str(tmp_path / name) for name in ("d", "none", "other")}
    assert main([text.format(**places) for text in arguments]) in (1, 2)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith(f"retold {arguments[0]}: ")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(("version", "command"), [(2, "pip install -U"), ("x", "copy")])
def test_other_versions_are_refused_with_what_to_do(
    tmp_path: Path, version: object, command: str
) -> None:
    path = tmp_path / "d"
    append_tiny(path, 0)
    content = json.loads((path / "dataset.json").read_bytes())
    (path / "dataset.json").write_text(json.dumps({**content, "format_version": version}))
    with pytest.raises(RetoldError, match=command):
        DatasetReader.open(path)


def test_migrate_has_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append_tiny(tmp_path / "d", 0)
    assert main(["migrate", str(tmp_path / "d"), str(tmp_path / "new")]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_a_snapshot_is_retold_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, told = tmp_path / "raw", tmp_path / "told"
    task = ["--task-args", '{"size": 7, "limit": 20}']
    for seed in ("1", "2"):
        assert main(["collect", "maze", str(raw), "--episodes", "3", "--seed", seed, *task]) == 0
    assert main(["relabel", f"{raw}@0", str(told), "--workers", "0"]) == 0
    compact(CompactConfig(dataset=raw))
    assert main(["relabel", str(raw), str(told), "--workers", "0"]) == 0
    assert main(["audit", str(told)]) == 0
    with DatasetReader.open(told) as reader:
        assert len(set(reader.table["source_episode_id"].to_pylist())) == 6

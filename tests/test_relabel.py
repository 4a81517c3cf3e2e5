"""Relabelling: own instructions reproduce, variants are new, and bytes depend on nothing else."""

from pathlib import Path

import numpy as np
import pytest

from retold.collect.command import CollectConfig, collect
from retold.dataset.audit import audit_structure
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.relabel.audit import audit_rewards
from retold.relabel.command import RelabelConfig, relabel
from retold.relabel.onsets import find_onsets
from retold.relabel.strategies import retell_instruction
from retold.schemas.errors import DatasetError
from retold.schemas.instruction import retell
from retold.schemas.vocabulary import GoalFamily, GoalVocabulary


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("relabel") / "raw"
    for task_args in ({"size": 7, "limit": 60, "goals": [1, 3]},):
        for first in (0, 20):
            config = CollectConfig(
                task="maze", task_args=task_args, dataset=path, first=first, episodes=20
            )
            collect(config)
    return path


def shard_ids(path: Path) -> list[str]:
    return [entry.shard_id for entry in CommitLog.open(path).live_shards()]


@pytest.fixture(scope="module")
def crafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("relabel") / "crafter"
    collect(CollectConfig(task="crafter", task_args={"limit": 150}, dataset=path, episodes=8))
    return path


@pytest.mark.parametrize("task", ["source", "crafter"])
def test_the_own_instruction_reproduces_every_episode(
    task: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(task)
    with DatasetReader.open(path) as reader:
        assert any(reader.record(row).completed for row in range(len(reader)))
        for row in range(len(reader)):
            episode = reader.read_episode(row)
            outcome = retell(
                episode.record.instruction,
                episode.event_step,
                episode.event_goal,
                source_length=episode.length,
                environment_terminated=episode.record.environment_terminated,
            )
            for name in ("reward", "terminated", "truncated"):
                assert getattr(outcome, name).tobytes() == getattr(episode, name).tobytes()
    assert audit_rewards(path) == []


@pytest.mark.parametrize("strategy", ["some", "all"])
def test_variants_are_new_and_pass_the_audits(source: Path, tmp_path: Path, strategy: str) -> None:
    config = RelabelConfig(
        source=source,
        target=tmp_path / "told",
        strategy=strategy,  # type: ignore[arg-type]
        variants=5,
        workers=0,
    )
    result = relabel(config)
    assert result.episodes == 40 and result.variants + result.dropped == 200
    assert result.bytes_per_variant is not None and result.bytes_per_variant <= 150
    assert audit_structure(config.target) == [] and audit_rewards(config.target) == []
    with DatasetReader.open(config.target) as reader:
        told = set()
        for row in range(len(reader)):
            record = reader.record(row)
            told.add((record.source_episode_id, record.instruction))
        assert len(told) == len(reader)


def test_workers_do_not_change_a_byte(source: Path, tmp_path: Path) -> None:
    ids = []
    for workers in (0, 2):
        target = tmp_path / str(workers)
        relabel(RelabelConfig(source=source, target=target, workers=workers))
        ids.append(shard_ids(target))
    assert ids[0] == ids[1] and len(ids[0]) == 2


def test_only_new_shards_are_retold(tmp_path: Path) -> None:
    raw, target = tmp_path / "raw", tmp_path / "told"
    task_args = {"size": 7, "limit": 30}
    for first in (0, 5):
        collect(
            CollectConfig(task="maze", task_args=task_args, dataset=raw, first=first, episodes=5)
        )
        result = relabel(RelabelConfig(source=raw, target=target, workers=0))
        assert (result.shards, result.skipped) == (1, first // 5)
    again = relabel(RelabelConfig(source=raw, target=target, workers=0))
    assert (again.shards, again.skipped, again.snapshot) == (0, 2, 1)


def test_a_wrong_row_is_found_by_the_reward_audit(source: Path, tmp_path: Path) -> None:
    from retold.dataset.shard_writer import write_variant_shard
    from retold.schemas.commit import SourceEntry
    from retold.schemas.episode import EpisodeRecord

    good = tmp_path / "good"
    relabel(RelabelConfig(source=source, target=good, workers=0))
    with DatasetReader.open(good) as reader:
        row = next(r for r in range(len(reader)) if reader.record(r).completed)
        record, schema = reader.record(row), reader.schema
    shifted = (record.completed[0] + 1, *record.completed[1:])
    wrong = EpisodeRecord(**{**vars(record), "completed": shifted})
    log = CommitLog.create(tmp_path / "bad")
    entry = write_variant_shard(log.path, [wrong], schema)
    head = CommitLog.open(source).head()
    assert head is not None
    sources = {head.dataset_id: SourceEntry(head, (str(source),))}
    log.append(operation="relabel", added=[entry], sources=sources)
    findings = audit_rewards(log.path)
    assert any(record.episode_id in f.where and entry.shard_id in f.where for f in findings)


def test_a_lost_source_is_named(source: Path, tmp_path: Path) -> None:
    import shutil

    moved, target = tmp_path / "moved", tmp_path / "told"
    shutil.copytree(source, moved)
    relabel(RelabelConfig(source=moved, target=target, workers=0))
    moved.rename(tmp_path / "elsewhere")
    with DatasetReader.open(target) as reader:
        with pytest.raises(DatasetError, match=CommitLog.open(source).dataset_id):
            reader.read_episode(0)
        found = {CommitLog.open(source).dataset_id: tmp_path / "elsewhere"}
    with DatasetReader.open(target, sources=found) as reader:
        assert reader.read_episode(0).length >= 1


def test_a_source_without_goals_is_refused(tmp_path: Path) -> None:
    collect(CollectConfig(task="tmaze", dataset=tmp_path / "raw", episodes=2))
    with pytest.raises(DatasetError, match="no goals"):
        relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "told", workers=0))


def test_onsets_are_where_a_goal_begins_to_hold() -> None:
    vocabulary = GoalVocabulary(
        (GoalFamily("occurrence", (("do",),)), GoalFamily("state", (("at",), ("a", "b"))))
    )
    step = np.array([0, 0, 1, 1, 2, 4], np.uint32)
    goal = np.array([0, 1, 0, 1, 2, 1], np.uint32)
    onset = find_onsets(step, goal, (1,), vocabulary)
    assert onset.tolist() == [True, False, True, False, True, True]


def test_alternatives_follow_their_distribution() -> None:
    rng = np.random.default_rng(0)
    onset_step = np.array([1, 3, 3, 6], np.uint32)
    onset_goal = np.array([10, 11, 12, 13], np.uint32)
    counts = np.zeros(3)
    draws = 6000
    for _ in range(draws):
        told = retell_instruction("some", (1, 2, 3), (3,), onset_step, onset_goal, rng)
        assert len(told) == 3 and not {11, 12} & set(told)  # transition 3 belongs to a kept goal
        counts[sum(goal >= 10 for goal in told)] += 1
        assert list(told) == [*sorted(t for t in told if t == 10), 1, *told[told.index(1) + 1 :]]
    # h is uniform over 0, 1, 2: chi-square with 2 degrees of freedom, 0.1 % level.
    assert float(((counts - draws / 3) ** 2 / (draws / 3)).sum()) < 13.8

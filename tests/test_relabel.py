"""Relabelling: own instructions reproduce, variants are new, and bytes depend on nothing else."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from distributed import LocalCluster

from retold.collect.command import CollectConfig, collect
from retold.dataset.audit import audit_structure
from retold.dataset.compact import CompactConfig, compact
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.relabel.audit import audit_rewards
from retold.relabel.command import RelabelConfig, relabel
from retold.relabel.coverage import Coverage, measure_coverage
from retold.relabel.explanation import Explanation, explain_episode
from retold.relabel.options import RelabelOptions
from retold.relabel.shard_task import SourceShard, retell_shard
from retold.relabel.strategies import STRATEGIES
from retold.schemas.commit import SourceEntry
from retold.schemas.errors import DatasetError, RelabelError, UsageError
from retold.schemas.instruction import retell


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


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"original"}))
def test_variants_are_new_and_pass_the_audits(source: Path, tmp_path: Path, strategy: str) -> None:
    config = RelabelConfig(
        source=source,
        target=tmp_path / "told",
        strategy=strategy,
        variants=5,
        workers=0,
    )
    result = relabel(config)
    assert result.episodes == 40 and result.variants + result.dropped == 200
    assert result.variants > 0 and result.bytes_per_variant is not None
    if strategy in ("some", "all"):  # HER's few variants share the cost of a shard among fewer
        assert result.bytes_per_variant <= 150
    assert audit_structure(config.target) == [] and audit_rewards(config.target) == []
    with DatasetReader.open(config.target) as reader:
        told = set()
        for row in range(len(reader)):
            record = reader.record(row)
            told.add((record.source_episode_id, record.instruction))
        assert len(told) == len(reader)


def test_workers_order_and_a_killed_one_do_not_change_a_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "killed"
    (tmp_path / "deadly.py").write_text(
        "import os, pathlib, signal\n"
        "from retold.relabel.strategies import some\n"
        f"MARKER = pathlib.Path({str(marker)!r})\n"
        "def once(history, plan):\n"
        "    if not MARKER.exists():\n"
        "        MARKER.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return some(history, plan)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ids = []
    for workers, strategy in ((2, "deadly:once"), (0, "deadly:once"), (1, "deadly:once")):
        target = tmp_path / f"{workers}"
        relabel(RelabelConfig(source=source, target=target, workers=workers, strategy=strategy))
        ids.append(shard_ids(target))
        assert marker.exists() and audit_rewards(target) == []
    assert ids[0] == ids[1] == ids[2] and len(ids[0]) == 2
    with DatasetReader.open(source) as reader:
        options = RelabelOptions(strategy="deadly:once")
        shards = [SourceShard(source, reader.dataset_id, entry) for entry in reader.shards]
    target = CommitLog.create(tmp_path / "4").path
    backwards = [retell_shard(shard, target, options).entry for shard in shards[::-1]]
    assert [entry.shard_id for entry in backwards[::-1] if entry] == ids[0]


@pytest.mark.long
def test_four_workers_make_what_none_makes(source: Path, tmp_path: Path) -> None:
    for workers in (0, 1, 2, 4):
        relabel(RelabelConfig(source=source, target=tmp_path / f"{workers}", workers=workers))
    found = [shard_ids(tmp_path / f"{workers}") for workers in (0, 1, 2, 4)]
    assert found[0] == found[1] == found[2] == found[3]


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
    from retold.dataset.table import make_table
    from retold.schemas.episode import EpisodeRecord

    good = tmp_path / "good"
    relabel(RelabelConfig(source=source, target=good, workers=0))
    with DatasetReader.open(good) as reader:
        row = next(r for r in range(len(reader)) if reader.record(r).completed)
        record, schema = reader.record(row), reader.schema
    shifted = (record.completed[0] + 1, *record.completed[1:])
    wrong = EpisodeRecord(**{**vars(record), "completed": shifted})
    log = CommitLog.create(tmp_path / "bad")
    entry = write_variant_shard(log.path, make_table([wrong], {}), schema)
    head = CommitLog.open(source).head()
    assert head is not None
    sources = {head.dataset_id: SourceEntry(head, (str(source),))}
    log.append(operation="relabel", added=[entry], sources=sources)
    findings = audit_rewards(log.path)
    assert any(record.episode_id in f.where and entry.shard_id in f.where for f in findings)


def test_a_lost_source_is_named(source: Path, tmp_path: Path) -> None:
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


def test_the_original_alone_is_dropped_and_counted(source: Path, tmp_path: Path) -> None:
    config = RelabelConfig(source=source, target=tmp_path / "told", strategy="original", workers=0)
    result = relabel(config)
    assert (result.variants, result.dropped) == (0, 160)
    assert relabel(config).skipped == 2


def test_a_filter_chooses_the_episodes(source: Path, tmp_path: Path) -> None:
    config = RelabelConfig(
        source=source,
        target=tmp_path / "told",
        filter="episode_return == 0 and events >= 10",
        workers=0,
    )
    result = relabel(config)
    assert 0 < result.filtered < 40 and result.episodes == 40 - result.filtered
    with DatasetReader.open(source) as reader:
        unrewarded = {
            record.episode_id
            for record in map(reader.record, range(len(reader)))
            if record.episode_return == 0
        }
    with DatasetReader.open(config.target) as reader:
        assert {reader.record(row).source_episode_id for row in range(len(reader))} <= unrewarded
    with pytest.raises(UsageError, match="length"):
        RelabelConfig(source=source, target=tmp_path / "told", filter="lenght > 3")


def test_commits_of_some_shards_hold_what_one_commit_does(source: Path, tmp_path: Path) -> None:
    one = RelabelConfig(source=source, target=tmp_path / "one", workers=0)
    many = RelabelConfig(source=source, target=tmp_path / "many", workers=0, commit_every=1)
    assert (relabel(one).snapshot, relabel(many).snapshot) == (0, 1)
    assert shard_ids(one.target) == shard_ids(many.target)


def test_other_settings_under_the_same_ids_are_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "told"
    relabel(RelabelConfig(source=source, target=target, workers=0))
    with pytest.raises(DatasetError, match="--seed"):
        relabel(RelabelConfig(source=source, target=target, variants=7, workers=0))
    # Another seed, strategy or length makes other ids: a generation beside the first.
    for changed in ({"seed": 1}, {"strategy": "all"}, {"length_weights": (1.0, 1.0)}):
        relabel(RelabelConfig(source=source, target=target, workers=0, **changed))  # type: ignore[arg-type]
    with DatasetReader.open(target) as reader:
        ids = reader.table["episode_id"].to_pylist()
        labels = set(reader.table["strategy"].to_pylist())
    assert len(set(ids)) == len(ids) and labels == {"some", "all", "some lengths=1,1"}


def test_a_strategy_of_the_users_own_runs_on_workers(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_strategies.py").write_text(
        "import numpy as np\n"
        "def first(history, plan):\n"
        "    moment = history.moment_offset[plan.episode]\n"
        "    return history.onset_goal[history.moment_start[moment]][:, None]\n"
        "def broken(history, plan):\n"
        "    return history.no_such_thing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = RelabelConfig(
        source=source, target=tmp_path / "told", strategy="my_strategies:first", workers=1
    )
    assert relabel(config).variants > 0
    with pytest.raises(RelabelError, match="my_strategies:broken.*no_such_thing"):
        relabel(
            RelabelConfig(
                source=source, target=tmp_path / "x", strategy="my_strategies:broken", workers=0
            )
        )


def test_the_time_line_marks_every_goal_at_its_step(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "told"
    relabel(RelabelConfig(source=source, target=target, strategy="all", workers=0))
    with DatasetReader.open(target) as reader:
        variant = reader.record(len(reader) - 1)
        name = str(variant.source_episode_id)
    explained = _explain(target, name[:10])
    assert explained == _explain(target, variant.episode_id)
    assert explained.episode_id == name and explained.tellings[0].name == "original"
    assert explained.tellings[-1].episode_id == variant.episode_id
    steps = {moment.step: (*moment.began, *moment.continued) for moment in explained.moments}
    for telling in explained.tellings:
        for goal, step in zip(telling.instruction, telling.completed, strict=False):
            assert goal in steps[step]
    alone = _explain(source, name)
    assert len(alone.tellings) == 1 and alone.moments == explained.moments
    with pytest.raises(DatasetError, match="no such live episode"):
        _explain(target, "not an episode")


def test_coverage_counts_what_was_collected_and_what_was_retold(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "told"
    relabel(RelabelConfig(source=source, target=target, strategy="all", workers=0))
    coverage = _cover(target)
    collected, retold = coverage.tellings
    with DatasetReader.open(source) as raw, DatasetReader.open(target) as told:
        for telling, reader in ((collected, raw), (retold, told)):
            records = [reader.record(row) for row in range(len(reader))]
            assert telling.episodes == len(records)
            assert telling.goals_met == sum(len(record.completed) for record in records)
            assert telling.steps == sum(record.length for record in records)
        achieved = {
            goal: sum(
                bool(set(np.asarray(raw.read_events(row)[1]).tolist()) & {goal})
                for row in range(len(raw))
            )
            for goal in range(49)
        }
        vocabulary = raw.schema.tasks[0].vocabulary
        assert vocabulary is not None
    for item in coverage.goals:
        # The start cell is true at once: it counts only where it was left and entered again.
        goal = vocabulary.goal_id(tuple(item.goal.split()))
        assert item.achieved is not None and item.achieved <= achieved[goal]
    assert retold.reward_per_1000_steps > collected.reward_per_1000_steps
    assert sum(item.retold for item in coverage.returns) == retold.episodes
    assert sum(n * count for n, count in enumerate(coverage.variants)) == retold.episodes
    assert sum(coverage.variants) == collected.episodes
    assert _cover(source).tellings == (collected,)


def test_a_generation_can_be_evicted_and_does_not_come_back(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "told"
    first = RelabelConfig(source=source, target=target, workers=0)
    relabel(first)
    second = RelabelConfig(source=source, target=target, strategy="all", workers=0)
    kept = relabel(second).variants
    result = evict(EvictConfig(dataset=target, where="strategy == 'some' and relabel_seed == 0"))
    assert result.episodes == kept and result.evicted > 0
    again = relabel(first)
    assert (again.shards, again.skipped) == (0, 2)
    with DatasetReader.open(target) as reader:
        assert set(reader.table["strategy"].to_pylist()) == {"all"}


def test_a_compacted_source_is_not_retold_twice(source: Path, tmp_path: Path) -> None:
    raw, target = tmp_path / "raw", tmp_path / "told"
    shutil.copytree(source, raw)
    config = RelabelConfig(source=raw, target=target, workers=0)
    before = relabel(config)
    assert compact(CompactConfig(dataset=raw)).shards == 1
    again = relabel(config)
    assert (again.shards, again.variants) == (1, 0)
    with DatasetReader.open(target) as reader:
        assert len(reader) == before.variants
    assert audit_structure(target) == [] and audit_rewards(target) == []


def test_a_running_cluster_does_the_work_and_a_missing_one_is_named(
    source: Path, tmp_path: Path
) -> None:
    here = RelabelConfig(source=source, target=tmp_path / "here", workers=0)
    relabel(here)
    there = tmp_path / "there"
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        relabel(RelabelConfig(source=source, target=there, scheduler=cluster.scheduler_address))
    assert shard_ids(there) == shard_ids(here.target)
    lost = RelabelConfig(source=source, target=tmp_path / "lost", scheduler="tcp://127.0.0.1:1")
    with pytest.raises(DatasetError, match="--scheduler"):
        relabel(lost)


def test_a_target_from_before_there_was_a_filter_is_gone_on_with(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "told"
    log = CommitLog.create(target)
    head, shards = CommitLog.open(source).head(), shard_ids(source)
    assert head is not None
    older = {"source": head.dataset_id, "strategy": "some", "variants": 4, "seed": 0}
    log.append(
        operation="relabel",
        details={"generation": {**older, "reward_version": 1}, "source_shards": shards[:1]},
        sources={head.dataset_id: SourceEntry(head, (str(source),))},
    )
    result = relabel(RelabelConfig(source=source, target=target, workers=0))
    assert (result.shards, result.skipped) == (1, 1)


def _explain(path: Path, episode: str) -> Explanation:
    with DatasetReader.open(path) as reader:
        return explain_episode(reader, episode)


def _cover(path: Path) -> Coverage:
    with DatasetReader.open(path) as reader:
        return measure_coverage(reader)

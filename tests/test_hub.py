"""Datasets on the Hub: pushed as one commit, pulled bit by bit, and read where they are."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunRetold
from hub_fixtures import forget_revisions
from hub_state import TOKEN, Hub
from numpy.testing import assert_array_equal

from retold.cli.pull import pull
from retold.cli.push import push
from retold.collect.command import CollectConfig, collect
from retold.dataset import hub_content
from retold.dataset.audit import audit_structure
from retold.dataset.evict import EvictConfig, evict
from retold.dataset.hub_pull import PullConfig, PullResult
from retold.dataset.hub_push import PushConfig, PushResult
from retold.dataset.log import CommitLog
from retold.dataset.reader import DatasetReader
from retold.relabel.audit import audit_rewards
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.errors import ConflictError, DatasetError, FormatError, UsageError

TASK = {"size": 7, "limit": 60}
REPOSITORY = "me/maze"
NAME = f"datasets/{REPOSITORY}"


def collect_maze(path: Path, first: int = 0, episodes: int = 6) -> Path:
    collect(
        CollectConfig(task="maze", task_args=TASK, dataset=path, first=first, episodes=episodes)
    )
    return path


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return collect_maze(tmp_path / "raw")


@pytest.fixture
def retold(raw: Path) -> Path:
    target = raw.with_name("retold")
    relabel(RelabelConfig(source=raw, target=target, workers=0))
    return target


def send(dataset: Path, **settings: object) -> PushResult:
    return push(
        PushConfig(dataset=dataset, repository=REPOSITORY, license="mit", **settings)  # type: ignore[arg-type]
    )


def get(output: Path, repository: str = REPOSITORY, **settings: object) -> PullResult:
    return pull(PullConfig(repository=repository, output=output, **settings)).pulled  # type: ignore[arg-type]


def tree(folder: Path) -> dict[str, str]:
    """Hashes of the files that make a dataset."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("hub.json", "README.md")
    }


def test_what_is_pushed_is_pulled_bit_by_bit(hub: Hub, raw: Path, tmp_path: Path) -> None:
    result = send(raw, tag="v1")
    commits = hub.repository(NAME).commits
    assert len(commits) == 2, "the one that made the repository, and the push"
    assert commits[-1].oid == result.commit == hub.repository(NAME).tags["v1"]
    copy = tmp_path / "copy"
    pulled = get(copy, f"{REPOSITORY}@v1", verify=True)
    assert tree(copy) == tree(raw)
    assert audit_structure(copy) == [] and audit_rewards(copy) == []
    assert pulled.episodes == 6 and pulled.commit == result.commit


def test_variants_are_pushed_with_their_source(hub: Hub, retold: Path, tmp_path: Path) -> None:
    send(retold)
    (retold.parent / "raw").rename(tmp_path / "gone")
    copy = tmp_path / "elsewhere" / "copy"
    copy.parent.mkdir()
    get(copy)
    assert audit_structure(copy) == [] and audit_rewards(copy) == []
    with DatasetReader.open(copy) as reader:
        assert reader.read_episode(0).length > 0
        source = next(iter(set(reader.table["source_dataset_id"].to_pylist())))
        assert reader.source_reader(source).path == copy / "sources" / source
    with DatasetReader.open(f"hf://{REPOSITORY}") as reader:
        assert reader.read_episode(0).length > 0


def rows_of_viewer(hub: Hub) -> list[str]:
    files = hub.repository(NAME).files
    tables = [
        pq.read_table(pa.BufferReader(files[path].content))
        for path in sorted(files)
        if path.startswith("viewer/episodes-")
    ]
    return [row for table in tables for row in table["episode_id"].to_pylist()]


def test_a_second_push_sends_only_what_is_new(hub: Hub, raw: Path, tmp_path: Path) -> None:
    send(raw)
    hub.take()
    old = set(hub.repository(NAME).files)
    collect_maze(raw, first=6, episodes=1)
    result = send(raw, tag="v2")
    (new,) = CommitLog.open(raw).read(1).added
    seen = hub.take()
    assert len(hub.repository(NAME).commits) == 3
    added = set(hub.repository(NAME).files) - old
    assert added == {"commits/00000001.json"} | {
        path for path in hub.repository(NAME).files if new.shard_id in path
    }
    viewer = "viewer/episodes-00000.parquet"
    assert result.files == len(added) + 3, "the viewer's table, LATEST and the card change, too"
    there = hub.repository(NAME).files
    large = [there[path].size for path in {*added, viewer} if there[path].is_lfs]
    assert sorted(s.received for s in seen if "/upload/" in s.path) == sorted(large)
    (commit,) = [s.received for s in seen if "/commit/" in s.path]
    small = sum(there[path].size for path in added if not there[path].is_lfs)
    assert commit < 4 / 3 * (small + there["README.md"].size) + 200 * result.files
    before = len(hub.repository(NAME).commits)
    nothing = send(raw, tag="v2")
    assert (nothing.files, nothing.bytes, nothing.commit) == (0, 0, result.commit)
    assert len(hub.repository(NAME).commits) == before
    copy = tmp_path / "copy"
    get(copy, f"{REPOSITORY}@v2")
    assert tree(copy) == tree(raw)


def test_the_viewer_shows_exactly_the_live_episodes(hub: Hub, raw: Path, tmp_path: Path) -> None:
    send(raw, tag="v1")
    assert len(rows_of_viewer(hub)) == 6
    evict(EvictConfig(dataset=raw, episodes=4))
    send(raw)
    with DatasetReader.open(raw) as reader:
        assert rows_of_viewer(hub) == reader.table["episode_id"].to_pylist()
        live = {entry.shard_id for entry in reader.shards}
    there = {path.split("/")[2] for path in hub.repository(NAME).files if path.startswith("shards")}
    assert there == live, "shards that are not live leave the main branch"
    copy = tmp_path / "copy"
    get(copy)
    assert audit_structure(copy) == []
    get(tmp_path / "first", f"{REPOSITORY}@v1")
    with DatasetReader.open(tmp_path / "first") as reader:
        assert len(reader) == 6


def test_a_dry_run_says_what_would_change_and_changes_nothing(hub: Hub, raw: Path) -> None:
    planned = send(raw, dry_run=True)
    assert hub.repositories == {} and planned.commit is None
    unlicensed = push(PushConfig(dataset=raw, repository=REPOSITORY, dry_run=True))
    assert unlicensed.files == planned.files, "a plan needs no licence yet"
    made = send(raw)
    assert (planned.files, planned.bytes) == (made.files, made.bytes)
    assert {change.path for change in planned.changes} <= set(hub.repository(NAME).files)
    assert send(raw, dry_run=True).changes == ()


def test_a_copy_that_went_another_way_is_refused_both_ways(
    hub: Hub, raw: Path, tmp_path: Path
) -> None:
    send(raw)
    copy = tmp_path / "copy"
    get(copy)
    collect_maze(raw, first=6, episodes=1)
    collect_maze(copy, first=7, episodes=1)
    send(raw)
    before = hub.repository(NAME).head
    for act in (lambda: send(copy), lambda: get(copy)):
        with pytest.raises(DatasetError, match="commits 1 differ.*retold merge"):
            act()
    assert hub.repository(NAME).head == before
    behind = tmp_path / "behind"
    get(behind)
    collect_maze(raw, first=8, episodes=1)
    send(raw)
    with pytest.raises(DatasetError, match="has commit 2.*retold pull"):
        send(behind)
    pulled = get(behind)
    assert tree(behind) == tree(raw) and pulled.snapshot == 2
    assert get(behind).new_bytes == 0
    collect_maze(behind, first=9, episodes=1)
    assert get(behind).snapshot == 3, "a copy that is ahead stays as it is"
    other = collect_maze(tmp_path / "other", episodes=1)
    with pytest.raises(DatasetError, match="another dataset"):
        send(other)
    with pytest.raises(DatasetError, match="it is dataset"):
        get(other)


def test_a_push_that_loses_a_race_says_so_and_changes_nothing(hub: Hub, raw: Path) -> None:
    send(raw)
    collect_maze(raw, first=6, episodes=1)
    requests = count_requests(hub, lambda: send(raw, dry_run=True))
    hub.fail("race", at=requests + 1)
    with pytest.raises(ConflictError, match="somebody else committed"):
        send(raw)
    titles = [commit.title for commit in hub.repository(NAME).commits]
    assert titles[-1] == "put somebody-else.txt" and len(titles) == 3
    hub.heal()
    send(raw)
    files = hub.repository(NAME).files
    assert "somebody-else.txt" in files and "commits/00000001.json" in files


def count_requests(hub: Hub, act: Callable[[], object]) -> int:
    hub.take()
    act()
    return len(hub.take())


def test_a_tag_never_moves(hub: Hub, raw: Path) -> None:
    first = send(raw, tag="v1")
    collect_maze(raw, first=6, episodes=1)
    with pytest.raises(DatasetError, match="'v1' names commit .* for good"):
        send(raw, tag="v1")
    assert hub.repository(NAME).head.oid == first.commit
    with pytest.raises(UsageError, match="Begin with a letter"):
        send(raw, tag="1")


def test_a_licence_is_asked_for_once(hub: Hub, raw: Path) -> None:
    config = PushConfig(dataset=raw, repository=REPOSITORY)
    with pytest.raises(UsageError, match="--license"):
        push(config)
    send(raw)
    collect_maze(raw, first=6, episodes=1)
    push(config)
    assert b"license: mit\n" in hub.repository(NAME).files["README.md"].content


def test_what_people_wrote_in_a_card_is_kept(hub: Hub, raw: Path) -> None:
    repository = hub.make(NAME)
    repository.put(
        "README.md",
        b"---\nlicense: cc0-1.0\ntags: [mazes]\nlanguage: [en]\n---\n# Our mazes\n\nRead this first.\n",
    )
    repository.put("figure.svg", b"<svg/>")
    push(PushConfig(dataset=raw, repository=REPOSITORY))
    repository.put(
        "README.md", repository.files["README.md"].content.replace(b"Read this", b"Look here")
    )
    collect_maze(raw, first=6, episodes=1)
    push(PushConfig(dataset=raw, repository=REPOSITORY))
    card = repository.files["README.md"].content.decode()
    assert card.startswith("---\nlicense: cc0-1.0\n") and "- mazes" in card and "- en" in card
    assert "# Our mazes\n\nLook here first." in card and card.count("## Statistics") == 1
    assert (
        "7 episodes of `maze`" in card
        and "## Episodes" in card
        and "path: viewer/episodes-*.parquet" in card
    )
    assert "figure.svg" in repository.files
    repository.put("README.md", b"---\n[broken\n---\n")
    with pytest.raises(DatasetError, match="not YAML"):
        send(raw)


def test_tokens_and_home_folders_are_not_pushed(
    hub: Hub, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["retold", "collect", "maze", "/home/ann/secret-plans/raw"])
    collect_maze(raw, first=6, episodes=1)
    with pytest.raises(DatasetError, match="names the folder /home/ann .*--allow-paths"):
        send(raw)
    assert NAME not in hub.repositories
    send(raw, allow_paths=True)
    monkeypatch.setattr("sys.argv", ["retold", "collect", "--token", TOKEN])
    collect_maze(raw, first=7, episodes=1)
    for settings in ({}, {"allow_paths": True}):
        with pytest.raises(DatasetError, match="looks like a secret") as refused:
            send(raw, **settings)
        assert TOKEN not in str(refused.value)
    repository = hub.make("datasets/me/clean")
    push(PushConfig(dataset=raw, repository="me/clean", license="mit", materialize=True))
    assert all(TOKEN.encode() not in blob.content for blob in repository.files.values())


def test_a_copy_with_arrays_of_its_own_goes_on_in_its_own_log(
    hub: Hub, retold: Path, tmp_path: Path
) -> None:
    send(retold, materialize=True)
    assert send(retold, materialize=True).files == 0
    assert not any(path.startswith("sources/") for path in hub.repository(NAME).files)
    first = get(tmp_path / "first")
    assert first.snapshot == 0
    collect_maze(retold.with_name("raw"), first=6, episodes=2)
    relabel(RelabelConfig(source=retold.with_name("raw"), target=retold, workers=0))
    send(retold, materialize=True)
    second = get(tmp_path / "first")
    assert second.dataset_id == first.dataset_id and second.snapshot == 1
    assert audit_structure(tmp_path / "first") == []
    with DatasetReader.open(retold) as mine, DatasetReader.open(tmp_path / "first") as copy:
        assert sorted(mine.table["episode_id"].to_pylist()) == sorted(
            copy.table["episode_id"].to_pylist()
        )
    other = collect_maze(tmp_path / "other", episodes=1)
    with pytest.raises(DatasetError, match="was not made of"):
        send(other, materialize=True)


def test_codecs_of_a_copy_can_be_chosen(hub: Hub, retold: Path, tmp_path: Path) -> None:
    raw = retold.with_name("raw")
    send(raw, profile="small")
    copy = tmp_path / "copy"
    get(copy)
    with DatasetReader.open(raw) as one, DatasetReader.open(copy) as two:
        assert_array_equal(one.read_episode(2).reward, two.read_episode(2).reward)
    assert all(
        json.loads(path.read_bytes())["profile"] == "small"
        for path in copy.glob("shards/*/*/manifest.json")
    )


def test_damage_is_found_before_anything_is_sent(hub: Hub, raw: Path) -> None:
    path = next(p for p in raw.glob("shards/*/*/arrays/observation/c/**/0") if p.is_file())
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FormatError, match=str(path)):
        send(raw)
    assert NAME not in hub.repositories


def test_a_push_stays_within_the_limits_of_the_hub(
    hub: Hub, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, what in (
        ("MOST_FILES", "a push of"),
        ("MOST_REPOSITORY_FILES", "a repository of"),
        ("MOST_FOLDER_ENTRIES", "a folder"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(hub_content, name, 3)
            with pytest.raises(DatasetError, match=f"{what}.*retold compact"):
                send(raw)
    assert NAME not in hub.repositories


def test_a_gitignore_that_would_break_a_push_is_told(hub: Hub, raw: Path) -> None:
    repository = hub.make(NAME)
    repository.put(".gitignore", b"shards\n")
    with pytest.raises(DatasetError, match=r"\.gitignore leaves out shards"):
        send(raw)
    assert "dataset.json" not in repository.files


def test_a_part_is_pulled_with_only_what_it_needs(hub: Hub, raw: Path, tmp_path: Path) -> None:
    collect_maze(raw, first=6, episodes=6)
    send(raw)
    hub.take()
    get(tmp_path / "whole")
    everything = sum(seen.sent for seen in hub.take())
    part = get(tmp_path / "part", shards=1)
    needed = sum(seen.sent for seen in hub.take())
    with DatasetReader.open(raw) as reader, DatasetReader.open(tmp_path / "part") as copy:
        expected = reader.table["episode_id"].to_pylist()[:6]
        assert copy.table["episode_id"].to_pylist() == expected
        assert_array_equal(copy.read_episode(1).reward, reader.read_episode(1).reward)
        skipped = reader.shards[1]
    assert part.episodes == 6 and needed < everything
    forget_revisions()
    get(tmp_path / "few", episodes="index == 8")
    seen = hub.take()
    with DatasetReader.open(tmp_path / "few") as copy:
        assert len(copy) == 1
    first = [s for s in seen if "/resolve/" in s.path and "arrays" in s.path]
    assert first and all(skipped.shard_id in s.path for s in first), "of the other shard nothing"
    with pytest.raises(DatasetError, match="ask for less"):
        get(tmp_path / "none", episodes="length > 10000")
    with pytest.raises(DatasetError, match="exists already"):
        get(tmp_path / "few", shards=1)


def test_a_part_of_variants_stands_alone(hub: Hub, retold: Path, tmp_path: Path) -> None:
    send(retold)
    get(tmp_path / "part", episodes="variant == 0")
    with DatasetReader.open(tmp_path / "part") as copy, DatasetReader.open(retold) as whole:
        assert 0 < len(copy) < len(whole)
        record = copy.record(0)
        mine = copy.read_episode(0)
        other = whole.read_episode(whole.find(record.episode_id))
        assert_array_equal(mine.reward, other.reward)
    assert audit_structure(tmp_path / "part") == []


def test_the_commands_print_one_line_and_exit_1(
    hub: Hub, raw: Path, tmp_path: Path, run_retold: RunRetold
) -> None:
    pushed = run_retold("push", raw, REPOSITORY, "--license", "mit", "--tag", "v1", "--json")
    assert pushed.returncode == 0, pushed.stderr
    assert json.loads(pushed.stdout)["tag"] == "v1"
    assert TOKEN not in pushed.stdout + pushed.stderr
    pulled = run_retold("pull", f"{REPOSITORY}@v1", tmp_path / "copy", "--verify")
    assert pulled.returncode == 0, pulled.stderr
    assert "clean (6 episodes" in pulled.stdout
    hub.token = "hf_" + "n" * 34
    for arguments, what in (
        (("push", raw, REPOSITORY), "hf auth login"),
        (("pull", "me/nothing", tmp_path / "x"), "no such repository"),
        (("pull", f"{REPOSITORY}@v9", tmp_path / "x"), "no such tag"),
        (("pull", "me", tmp_path / "x"), "OWNER/NAME"),
        (("info", "hf://me/nothing"), "no such repository"),
    ):
        done = run_retold(*arguments)
        assert done.returncode in (1, 2) and what in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr

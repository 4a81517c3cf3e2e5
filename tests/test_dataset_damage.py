"""Damage of every kind in every file: audit names it, reading never lies, repair saves the rest."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dataset import SCHEMA, assert_equal, make_episode
from test_dataset_operations import append, retell

from retold.cli.__main__ import main
from retold.dataset.audit import audit_structure
from retold.dataset.checkpoint import CHECKPOINT_EVERY
from retold.dataset.gc import GcConfig, collect_garbage
from retold.dataset.history import TagConfig, tag
from retold.dataset.log import CommitLog
from retold.dataset.pins import pin
from retold.dataset.reader import DatasetReader
from retold.dataset.repair import RepairConfig, repair
from retold.dataset.shard_writer import write_raw_shard
from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.episode import Episode
from retold.schemas.errors import RetoldError
from retold.schemas.spaces import DictSpace, Leaf, space_leaves

KINDS = {
    "dataset.json": ["dataset.json"],
    "commit": ["commits/*.json"],
    "newest commit": ["commits/00000064.json"],
    "schema": ["schemas/*.json"],
    "manifest": ["shards/*/*/manifest.json"],
    "table": ["shards/*/*/episodes.parquet"],
    "array metadata": ["shards/*/*/arrays/**/zarr.json"],
    "array": ["shards/*/*/arrays/**/c/**/0"],
    "LATEST": ["LATEST"],
    "checkpoint": ["checkpoints/*"],
    "pin": ["pins/*.json"],
}
NEEDED = set(KINDS) - {"LATEST", "checkpoint", "pin"}
WAYS = ("flip", "truncate", "delete", "garbage")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards, 65 commits, a tag, a checkpoint, a pin; and variants beside it."""
    root = tmp_path_factory.mktemp("whole")
    append(root / "raw", 0, 1, length=150)
    append(root / "raw", 2, 3, length=40)
    log = CommitLog.open(root / "raw")
    for _ in range(CHECKPOINT_EVERY - 3):
        log.append(operation="note")
    tag(TagConfig(dataset=root / "raw", name="tagged"))
    append(root / "raw", 4)
    retell(root / "raw", root / "told")
    with pin(root / "raw", "train", "a training", log.snapshot(1)):
        shutil.copytree(root / "raw" / "pins", root / "pins")
    shutil.copytree(root / "pins", root / "raw" / "pins", dirs_exist_ok=True)
    assert len(list((root / "raw" / "checkpoints").iterdir())) == 3
    assert audit_structure(root / "raw") == [] and audit_structure(root / "told") == []
    return root


def read_all(path: Path) -> dict[str, Episode]:
    with DatasetReader.open(path) as reader:
        found = [reader.read_episode(row) for row in range(len(reader))]
    return {episode.record.episode_id: episode for episode in found}


def damage(file: Path, way: str, place: float, garbage: bytes) -> None:
    content = file.read_bytes()
    at = int(place * len(content))
    if way == "flip":
        changed = bytearray(content)
        changed[at] ^= 1 << (at % 8)
        file.write_bytes(changed)
    elif way == "truncate":
        file.write_bytes(content[:at])
    elif way == "garbage":
        file.write_bytes(garbage)
    else:
        file.unlink()


PLACES = {
    "choice": st.integers(0, 10**6),
    "place": st.floats(0, 0.9999),
    "garbage": st.binary(max_size=99),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3, deadline=None)
@given(way=st.sampled_from(WAYS), **PLACES)
def test_damage_is_named_never_read_and_the_rest_is_saved(
    whole: Path, kind: str, way: str, choice: int, place: float, garbage: bytes
) -> None:
    check_damage(whole, kind, way, choice, place, garbage)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(**PLACES)
def test_much_damage_is_named_never_read_and_the_rest_is_saved(
    whole: Path, kind: str, way: str, choice: int, place: float, garbage: bytes
) -> None:
    check_damage(whole, kind, way, choice, place, garbage)


def check_damage(
    whole: Path, kind: str, way: str, choice: int, place: float, garbage: bytes
) -> None:
    original = read_all(whole / "raw")
    root = Path(tempfile.mkdtemp(dir=whole.parent))
    shutil.copytree(whole / "raw", root / "raw")
    files = sorted(p for g in KINDS[kind] for p in (root / "raw").glob(g) if p.is_file())
    file = files[choice % len(files)]
    damage(file, way, place, garbage)
    findings = audit_structure(root / "raw")
    if (kind, way) != ("pin", "delete"):
        assert any(str(file) in str(finding) for finding in findings), (file, findings)
    if kind in NEEDED:
        assert any(finding.severity == "error" for finding in findings)
        assert main(["audit", str(root / "raw")]) == 1
    try:
        found = read_all(root / "raw")
    except RetoldError as error:
        assert kind in NEEDED, error
    else:
        assert list(found) == list(original)
        for name, episode in found.items():
            assert_equal(episode, original[name])
    check_repair(root, file, kind, original)
    shutil.rmtree(root)


def check_repair(root: Path, file: Path, kind: str, original: dict[str, Episode]) -> None:
    result = repair(RepairConfig(dataset=root / "raw", new=root / "saved"))
    saved = read_all(root / "saved") if result.episodes else {}
    for name, episode in saved.items():
        assert_equal(episode, original[name])
    assert all(finding.severity == "warning" for finding in audit_structure(root / "saved"))
    if kind in NEEDED:
        assert any(str(file) in what for what in result.left), (file, result.left)
    if kind in ("manifest", "dataset.json") or kind not in NEEDED:
        assert len(saved) == 5
    if kind in ("table", "array metadata", "array"):
        assert 3 <= len(saved)


@pytest.mark.parametrize("way", ["flip", "truncate"])
def test_the_last_byte_of_the_description_counts(whole: Path, way: str) -> None:
    check_damage(whole, "dataset.json", way, 0, 0.9999, b"")


def test_repair_saves_the_episodes_beside_a_damaged_chunk(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "raw", tmp_path / "raw")
    shard = CommitLog.open(tmp_path / "raw").live_shards()[0].shard_id
    (file,) = (tmp_path / "raw").glob(f"shards/*/{shard}/arrays/observation/frame/c/0/0/0/0")
    content = bytearray(file.read_bytes())
    content[3] ^= 1  # in the first of three chunks: in episode 0
    file.write_bytes(content)
    result = repair(RepairConfig(dataset=tmp_path / "raw", new=tmp_path / "saved"))
    assert (result.episodes, result.lost) == (4, 1)
    assert f"{0:032x}" not in read_all(tmp_path / "saved")
    # What refers to the dataset finds the episodes in the new one.
    shutil.copytree(whole / "told", tmp_path / "told")
    sources = {CommitLog.open(tmp_path / "raw").dataset_id: tmp_path / "saved"}
    with DatasetReader.open(tmp_path / "told", sources=sources) as reader:
        reader.read_episode(1)
        with pytest.raises(RetoldError, match="not live"):
            reader.read_episode(0)


def test_every_flipped_byte_of_the_newest_commit_is_noticed(tmp_path: Path) -> None:
    append(tmp_path / "d", 0)
    file = tmp_path / "d" / "commits" / "00000000.json"
    original = file.read_bytes()
    for at in range(len(original)):
        changed = bytearray(original)
        changed[at] ^= 1 << (at % 7)
        file.write_bytes(changed)
        with pytest.raises(RetoldError, match="00000000.json|dataset.json"):
            CommitLog.open(tmp_path / "d").head()


@pytest.mark.parametrize(
    "name",
    ["commits", "schemas", "shards", "tmp", "pins", "checkpoints", "shards/??", "shards/??/*"],
)
def test_links_are_never_followed_out_of_a_dataset(tmp_path: Path, name: str) -> None:
    path, outside = tmp_path / "d", tmp_path / "outside"
    append(path, 0)
    outside.mkdir()
    (outside / "kept").write_bytes(b"mine")
    place = next(iter(path.glob(name)), path / name)
    if place.exists():
        shutil.copytree(place, outside, dirs_exist_ok=True)
        shutil.rmtree(place)
    place.symlink_to(outside)
    before = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    assert any(str(place) in str(finding) for finding in audit_structure(path))

    def use() -> None:
        with DatasetReader.open(path) as reader:
            reader.read_episode(0)
            with pin(path, "p", "a test", reader.snapshot):
                append(path, 0, 1, length=7)
        collect_garbage(GcConfig(dataset=path, keep=0, grace=0))
        CommitLog.open(path, from_checkpoint=True)._start_at_checkpoint()

    if name != "checkpoints":
        with pytest.raises(RetoldError, match="link"):
            use()
    assert {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("trick", ["../../../outside", "/etc/hostname", "a\0b", "..", "a/../b", ""])
def test_odd_names_in_a_dataset_lead_nowhere(tmp_path: Path, trick: str) -> None:
    """The log is rewritten with right hashes, as someone who means harm would do."""
    path = tmp_path / "d"
    append(path, 0)
    log = CommitLog.open(path)
    commit = log.read(0)
    entry = commit.added[0]
    shard = path / "shards" / entry.shard_id[:2] / entry.shard_id
    file = path / "commits" / "00000000.json"
    for field in ("id", "schema", "sha256"):
        content = commit.to_json()
        content["added"][0][field] = trick
        content.pop("dataset_id")
        file.write_bytes(encode_json(content))
        with pytest.raises(RetoldError, match="00000000.json"):
            read_all(path)
    manifest = (shard / "manifest.json").read_bytes()
    named = manifest.replace(b"episodes.parquet", encode_json(trick)[1:-2])
    (shard / "manifest.json").write_bytes(named)
    forged = replace(commit, added=(replace(entry, sha256=sha256_hex(named)),))
    file.write_bytes(forged.encoded)
    with pytest.raises(RetoldError, match="outside the shard"):
        read_all(path)
    assert audit_structure(path)


def test_a_field_with_an_odd_name_stays_inside_or_is_refused(tmp_path: Path) -> None:
    path = CommitLog.create(tmp_path / "d").path
    # A key of a space is escaped; the path of a declared info is taken as it stands.
    space = replace(
        SCHEMA.observation_space,  # type: ignore[type-var]
        spaces=(("../../../../outside", SCHEMA.observation_space.spaces[0][1]),),  # type: ignore[union-attr]
    )
    episode = make_episode(0, 3)
    (leaf,) = space_leaves(space, "observation")
    frame = {leaf.path: episode.observation["observation/frame"]}
    write_raw_shard(
        path, [replace(episode, observation=frame)], replace(SCHEMA, observation_space=space)
    )
    odd = Leaf("info/../../../../outside", "float32", (), is_optional=True)
    with pytest.raises(RetoldError, match="leads elsewhere"):
        write_raw_shard(path, [episode], replace(SCHEMA, info_leaves=(odd,)))
    assert not (tmp_path / "outside").exists()
    assert not any(p.name == "outside" for p in tmp_path.rglob("*"))


@pytest.mark.parametrize("key", ["../../../../outside", "..", "/outside", "a\0b", ""])
def test_a_field_with_an_odd_name_is_refused_or_stays_inside(tmp_path: Path, key: str) -> None:
    path = tmp_path / "d"
    assert isinstance(SCHEMA.observation_space, DictSpace)
    space = DictSpace(((key, SCHEMA.observation_space.spaces[0][1]),))
    schema = replace(SCHEMA, observation_space=space)
    (leaf,) = space_leaves(space, "observation")
    episode = make_episode(0, 3)
    episode = replace(episode, observation={leaf.path: episode.observation["observation/frame"]})
    CommitLog.create(path)
    try:
        write_raw_shard(path, [episode], schema)
    except RetoldError as error:
        assert "leads elsewhere" in str(error)
    assert os.listdir(tmp_path) == ["d"]
    assert not {entry.name for entry in path.iterdir()} & {"outside", "arrays", "zarr.json"}


def test_repair_of_something_else_says_so(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(RetoldError, match="no dataset here"):
        repair(RepairConfig(dataset=tmp_path / "d", new=tmp_path / "new"))
    assert os.listdir(tmp_path) == ["d"]

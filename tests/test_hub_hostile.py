"""Repositories made to do harm: nothing is written elsewhere, executed, believed or endlessly read."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_repositories import Blob, Repository, is_large
from hub_state import Hub
from test_hub import NAME, REPOSITORY, collect_maze, get, send, tree
from test_hub_faults import attempt

from retold.cli.audit import AuditConfig, audit_dataset
from retold.dataset.audit import audit_structure
from retold.dataset.hub_card_text import table
from retold.dataset.reader import DatasetReader
from retold.dataset.remote_path import RemotePath
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Commit
from retold.schemas.errors import RetoldError
from retold.schemas.manifest import FileEntry, Manifest


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return collect_maze(tmp_path / "raw", episodes=2)


def paths_of(hub: Hub, part: str) -> str:
    return next(path for path in sorted(hub.repository(NAME).files) if part in path)


def test_a_hostile_repository_harms_nothing(hub: Hub, raw: Path, tmp_path: Path) -> None:
    send(raw)
    repository = hub.repository(NAME)
    good = repository.head
    array, manifest = paths_of(hub, "/arrays/observation/c/"), paths_of(hub, "/manifest.json")
    content = repository.files[array].content
    crafted = json.loads(repository.files[manifest].content)
    crafted["files"][0]["path"] = "../../../../../../escaped"
    outside = tmp_path / "outside"
    attacks: dict[str, Callable[[], None]] = {
        "wrong bytes": lambda: repository.put(array, b"x" * len(content)),
        "a wrong hash that is claimed": lambda: repository.put(
            array, b"x" * len(content), is_lfs=True, claimed_sha256="0" * 64
        ),
        "a huge size": lambda: repository.put(array, content, claimed_size=10**15),
        "a huge description": lambda: repository.put(
            "dataset.json", repository.files["dataset.json"].content, claimed_size=10**12
        ),
        "a path that leads out": lambda: repository.put(manifest, json.dumps(crafted).encode()),
        "a commit of somebody else's": lambda: repository.put("commits/00000000.json", b"{}"),
        "a link's text": lambda: repository.put(array, str(outside).encode()),
        "a missing file": lambda: repository.commit({}, [array], "gone") and None,
    }
    for name, attack in attacks.items():
        attack()
        copy = tmp_path / "copy"
        hub.take()
        error = attempt(lambda copy=copy: get(copy))  # type: ignore[misc]
        assert error is not None and not copy.exists(), name
        assert sum(seen.sent for seen in hub.take()) < 200_000, name
        repository.commit(dict(good.files), [], "mended")
    assert not list(tmp_path.rglob("escaped")) and not outside.exists()


def test_what_no_manifest_names_is_not_even_fetched(hub: Hub, raw: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "harmed"), "w"))

    send(raw)
    repository = hub.repository(NAME)
    shard = paths_of(hub, "/manifest.json").rpartition("/")[0]
    for path in (
        "setup.py",
        "policy.pkl",
        f"{shard}/arrays/evil.pkl",
        "../escaped",
        "/etc/passwd",
        "commits/../../escaped",
        "hub.json",
        "pins/x.json",
        "checkpoints/00000063.json",
    ):
        repository.put(path, pickle.dumps(Harm()))
    card = b"---\nlicense: mit\n---\n<script>alert(1)</script>\n<!-- retold: end -->\n"
    repository.put("README.md", card)
    copy = tmp_path / "deep" / "copy"
    copy.parent.mkdir()
    get(copy)
    assert tree(copy) == tree(raw) and audit_structure(copy) == []
    assert not list(tmp_path.rglob("escaped")) and not (tmp_path / "harmed").exists()
    assert (copy / "README.md").read_bytes() == card, "a card is text, and is shown by nobody here"


Change = Callable[[dict[str, bytes]], None]
"""Changes the files of a shard, by path in it."""


def forge(
    repository: Repository,
    change: Change = lambda files: None,
    *,
    name: Callable[[str], str] = lambda path: path,
    size: Callable[[int], int] = lambda size: size,
) -> None:
    """Write the first shard and the log again with all hashes right, as somebody does who means harm.

    Args:
        repository: on the Hub.
        change: of the shard's files.
        name: what the manifest calls them.
        size: what it says that they have.
    """
    log = "commits/00000000.json"
    commit = Commit.decode(log, repository.files[log].content)
    old = f"shards/{commit.added[0].shard_id[:2]}/{commit.added[0].shard_id}/"
    files = {
        path.removeprefix(old): blob.content
        for path, blob in repository.files.items()
        if path.startswith(old)
    }
    known = Manifest.from_json(json.loads(files.pop("manifest.json")))
    change(files)
    entries = [
        FileEntry(name(path), size(len(content)), sha256_hex(content))
        for path, content in sorted(files.items())
    ]
    manifest = replace(known, files=tuple(entries))
    total = sum(map(len, files.values())) + len(manifest.encoded)
    entry = replace(
        commit.added[0], shard_id=manifest.shard_id, sha256=manifest.sha256, bytes=total
    )
    new = f"shards/{entry.shard_id[:2]}/{entry.shard_id}/"
    added = {
        f"{new}{path}": Blob(content, is_large(path, content)) for path, content in files.items()
    }
    added[f"{new}manifest.json"] = Blob(manifest.encoded, False)
    added[log] = Blob(replace(commit, added=(entry,)).encoded, False)
    repository.commit(added, [old], "forged")


@pytest.mark.parametrize(
    "trick",
    ["../../../../escaped", "/tmp/escaped", "a/../../../../escaped", "..\\escaped", "..", ""],
)
def test_a_path_that_leads_out_is_refused_though_all_hashes_are_right(
    hub: Hub, raw: Path, tmp_path: Path, trick: str
) -> None:
    send(raw)
    forge(hub.repository(NAME), name=lambda path: trick if path.startswith("episodes") else path)
    before = sorted(tmp_path.rglob("*"))
    for act in (
        lambda: get(tmp_path / "copy"),
        lambda: get(tmp_path / "part", shards=1),
        lambda: DatasetReader.open(RemotePath(f"hf://{REPOSITORY}")).read_episode(0),
    ):
        error = attempt(act)
        assert error is not None and "outside the shard" in str(error)
    after = [path for path in tmp_path.rglob("*") if "retold-blocks" not in str(path)]
    assert [
        p for p in after if p not in before and ".copy.pull" not in str(p) and p.is_file()
    ] == []


def test_sizes_that_no_disk_holds_are_refused_before_a_download(
    hub: Hub, raw: Path, tmp_path: Path
) -> None:
    send(raw)
    repository = hub.repository(NAME)
    forge(repository, size=lambda size: 10**17)
    for path, blob in repository.files.items():
        if path.startswith("shards/") and not path.endswith("manifest.json"):
            repository.put(path, blob.content, claimed_size=10**17)
    hub.take()
    error = attempt(lambda: get(tmp_path / "copy"))
    assert error is not None and "None was downloaded" in str(error)
    assert not [seen for seen in hub.take() if "/arrays/" in seen.path]


def replace_in(part: str, old: str, new: str) -> Change:
    """Say something else in the files of that name."""

    def change(files: dict[str, bytes]) -> None:
        names = [name for name in files if name.endswith(part)]
        assert any(old.encode() in files[name] for name in names), (part, old)
        for name in names:
            files[name] = files[name].replace(old.encode(), new.encode())

    return change


def test_arrays_that_ask_for_harm_are_refused_when_they_are_read(
    hub: Hub, raw: Path, tmp_path: Path
) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "harmed"), "w"))

    def pickle_chunks(files: dict[str, bytes]) -> None:
        replace_in("observation/zarr.json", '"blosc"', '"numcodecs.pickle"')(files)
        for name in files:
            if "/observation/c/" in name:
                files[name] = pickle.dumps(Harm())

    def pickle_table(files: dict[str, bytes]) -> None:
        files["episodes.parquet"] = pickle.dumps(Harm())

    def endless_episodes(files: dict[str, bytes]) -> None:
        table = pq.read_table(pa.BufferReader(files["episodes.parquet"]))
        lengths = pa.array([10**9] * len(table), table.schema.field("length").type)
        place = table.schema.get_field_index("length")
        buffer = pa.BufferOutputStream()
        pq.write_table(table.set_column(place, table.schema.field(place), lengths), buffer)
        files["episodes.parquet"] = buffer.getvalue().to_pybytes()

    send(raw)
    repository = hub.repository(NAME)
    good = repository.head
    metadata = json.loads(repository.files[paths_of(hub, "/reward/zarr.json")].content)
    (rows,) = metadata["shape"]
    (chunk,) = metadata["codecs"][0]["configuration"]["chunk_shape"]
    attacks: dict[str, Change] = {
        "pickled chunks": pickle_chunks,
        "a pickled table": pickle_table,
        "an endless array": replace_in("reward/zarr.json", f"[{rows}]", f"[{10**15}]"),
        "python objects": replace_in("reward/zarr.json", '"float32"', '"object"'),
        "endless episodes": endless_episodes,
        "endless chunks": replace_in(
            "reward/zarr.json", f'"chunk_shape":[{chunk}]', f'"chunk_shape":[{10**12}]'
        ),
        "chunks of nothing": replace_in(
            "reward/zarr.json", f'"chunk_shape":[{chunk}]', '"chunk_shape":[0]'
        ),
        "no array at all": replace_in("reward/zarr.json", '"shape"', '"form"'),
    }
    for number, (name, change) in enumerate(attacks.items()):
        forge(repository, change)
        copy = tmp_path / f"copy-{number}"
        get(copy)
        audited = audit_dataset(AuditConfig(dataset=copy))
        assert audited.exit_status == 1, name
        with pytest.raises(RetoldError), DatasetReader.open(copy) as reader:
            reader.read_episode(0)
        repository.commit(dict(good.files), [], "mended")
        for path in repository.files.keys() - good.files.keys():
            repository.commit({}, [path], "mended")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("path", ["dataset.json", "commits/00000000.json"])
@pytest.mark.parametrize("content", [b"[" * 50_000, b"{}", b"\xff" * 100, b"1" * 50_000, b""])
def test_descriptions_that_make_no_sense_are_refused(
    hub: Hub, raw: Path, tmp_path: Path, path: str, content: bytes
) -> None:
    send(raw)
    hub.repository(NAME).put(path, content)
    assert attempt(lambda: get(tmp_path / "copy")) is not None
    assert attempt(lambda: DatasetReader.open(RemotePath(f"hf://{REPOSITORY}"))) is not None
    assert attempt(lambda: send(raw)) is not None


def test_texts_from_the_data_mean_nothing_in_a_card() -> None:
    evil = ["<script>alert(1)</script>", "`<img src=x onerror=alert(1)>", "a | b", "`a` <b> `c`"]
    lines = table(("cell",), [(text,) for text in evil]).splitlines()
    assert len(lines) == 2 + len(evil)
    for line in lines[2:]:
        assert "<" not in line and ">" not in line and "`" not in line, line
        assert line.replace("\\|", "").count("|") == 2, line
    assert table(("cell",), [("`0a1b`",)]).endswith("| `0a1b` |")


LAUGHS = b"a: &a [x, x]\n" + b"".join(
    b"%c: &%c [*%c, *%c, *%c]\n" % (after, after, before, before, before)
    for before, after in zip(b"abcdefghijklmn", b"bcdefghijklmno", strict=True)
)


@pytest.mark.parametrize(
    "metadata",
    [
        b"tags: [[a], {b: c}, 3]\n",
        b"license: [mit]\n",
        b"tags: !!python/object/apply:os.system [exit]\n",
        b"- a list\n",
        LAUGHS,
        b"[" * 900 + b"]" * 900 + b"\n",
    ],
)
def test_odd_metadata_of_a_card_does_no_harm(
    hub: Hub, raw: Path, tmp_path: Path, metadata: bytes
) -> None:
    hub.make(NAME).put("README.md", b"---\n" + metadata + b"---\n# Odd\n")
    attempt(lambda: send(raw))
    hub.repository(NAME).put("README.md", b"---\nlicense: mit\n---\n")
    send(raw)
    hub.repository(NAME).put("README.md", b"---\n" + metadata + b"---\n# Odd\n")
    get(tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(raw)

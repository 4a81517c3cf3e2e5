"""What was pushed, read where it lies: by others, by the sampler, and by training."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import RunRetold
from hub_fixtures import forget_revisions
from hub_state import Hub, Seen
from numpy.testing import assert_array_equal
from test_hub import NAME, REPOSITORY, collect_maze, get, send

from retold.cli.audit import AuditConfig, audit_dataset
from retold.cli.info import InfoConfig, describe_dataset
from retold.cli.replay import ReplayConfig, replay
from retold.dataset.log import CommitLog
from retold.dataset.merge import MergeConfig, merge
from retold.dataset.reader import DatasetReader
from retold.dataset.remote_path import RemotePath
from retold.dataset.sampler import WindowSampler
from retold.dataset.shard_writer import write_raw_shard
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord
from retold.schemas.spaces import BoxSpace, DiscreteSpace
from retold.train.command import train
from retold.train.config import TrainConfig

URL = f"hf://{REPOSITORY}@v1"
WINDOW = 100
FEATURES = 32
VECTORS = DatasetSchema(
    tasks=(
        TaskDescription(
            name="noise", kwargs={}, code_version="1", limit_is="truncation", horizon=4000
        ),
    ),
    observation_space=BoxSpace((FEATURES,), "float32", float("-inf"), float("inf")),
    action_space=DiscreteSpace(6),
)

OTHERS = """
import json
import sys

import duckdb
import pandas
import zarr
from datasets import load_dataset
from huggingface_hub import HfFileSystem, snapshot_download

files = HfFileSystem()
folder = snapshot_download("me/maze", repo_type="dataset", allow_patterns="viewer/*")
table = "hf://datasets/me/maze/viewer/episodes-*.parquet"
ids = {
    "datasets": load_dataset("me/maze", split="train")["episode_id"],
    "streamed": [row["episode_id"] for row in load_dataset("me/maze", split="train", streaming=True)],
    "pandas": pandas.read_parquet(files.glob(table)[0], filesystem=files)["episode_id"],
    "duckdb": [row[0] for row in duckdb.sql(f"from '{folder}/viewer/*.parquet'").select("episode_id").fetchall()],
}
(arrays,) = files.glob("datasets/me/maze/shards/*/*/arrays")
group = zarr.open_group(zarr.storage.FsspecStore.from_url(f"hf://{arrays}"), mode="r")
found = {name: list(values) for name, values in ids.items()}
print(json.dumps({**found, "reward": group["reward"][:].tolist(), "retold": "retold" in sys.modules}))
"""

MINARI = """
import json

import minari

dataset = minari.load_dataset("maze-v0")
print(json.dumps([episode.rewards.tolist() for episode in dataset]))
"""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_others_read_what_was_pushed_without_retold(hub: Hub, tmp_path: Path) -> None:
    raw = collect_maze(tmp_path / "raw")
    send(raw, tag="v1")
    read = json.loads(run_python(OTHERS))
    assert not read.pop("retold")
    reward = np.array(read.pop("reward"))
    with DatasetReader.open(raw) as reader:
        expected = reader.table["episode_id"].to_pylist()
        episodes = [reader.read_episode(row) for row in range(len(reader))]
    assert read == dict.fromkeys(("datasets", "streamed", "pandas", "duckdb"), expected)
    assert reward.sum() == sum(episode.reward.sum() for episode in episodes)


def test_minari_reads_what_was_exported_from_where_it_lies(
    hub: Hub, tmp_path: Path, run_retold: RunRetold, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = collect_maze(tmp_path / "raw")
    send(raw, tag="v1")
    target = tmp_path / "minari" / "maze-v0"
    done = run_retold("export", "minari", URL, target, "--dataset-id", "maze-v0")
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(target.parent))
    rewards = json.loads(run_python(MINARI))
    with DatasetReader.open(raw) as reader:
        assert len(rewards) == len(reader)
        for row, reward in enumerate(rewards):
            assert_array_equal(reader.read_episode(row).reward, reward)


def test_audit_info_replay_relabel_and_merge_take_what_lies_on_the_hub(
    hub: Hub, tmp_path: Path
) -> None:
    raw = collect_maze(tmp_path / "raw")
    send(raw, tag="v1")
    there = RemotePath(URL)
    assert audit_dataset(AuditConfig(dataset=there, replay="1")).exit_status == 0
    assert replay(ReplayConfig(dataset=there, episode="0")).exit_status == 0
    info = describe_dataset(InfoConfig(dataset=there)).describe()
    assert info.replace(URL, str(raw)) == describe_dataset(InfoConfig(dataset=raw)).describe()
    relabel(RelabelConfig(source=there, target=tmp_path / "retold", workers=0))
    assert audit_dataset(AuditConfig(dataset=tmp_path / "retold")).exit_status == 0
    get(tmp_path / "part", f"{REPOSITORY}@v1", episodes="index == 3")
    merge(MergeConfig(output=tmp_path / "both", data=(there, tmp_path / "part")))
    with DatasetReader.open(tmp_path / "both") as both:
        assert len(both) == 6, "the part's episode is there already"


def test_the_lines_of_the_card_load_the_dataset(hub: Hub, tmp_path: Path) -> None:
    send(collect_maze(tmp_path / "raw"))
    card = hub.repository(NAME).files["README.md"].content.decode()
    blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(blocks) == 3
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3, done.stderr


def write_noise(path: Path) -> Path:
    """Observations that no codec makes smaller."""
    rng = np.random.default_rng(0)
    log = CommitLog.create(path)
    episodes = [make_noise(number, rng, 2000 + number) for number in range(4)]
    log.append(operation="collect", added=[write_raw_shard(path, episodes, VECTORS)])
    return path


def make_noise(number: int, rng: np.random.Generator, length: int) -> Episode:
    ended = np.zeros(length, bool)
    ended[-1] = True
    return Episode(
        record=EpisodeRecord(
            episode_id=f"{number:032x}",
            task=0,
            length=length,
            episode_return=0.0,
            terminated=False,
            truncated=True,
            environment_terminated=False,
        ),
        observation={"observation": rng.normal(size=(length + 1, FEATURES)).astype(np.float32)},
        action={"action": rng.integers(0, 6, length)},
        reward=np.zeros(length, np.float32),
        terminated=np.zeros(length, bool),
        truncated=ended,
        environment_terminated=np.zeros(length, bool),
        reset=np.zeros(length, bool),
        event_step=np.zeros(0, np.uint32),
        event_goal=np.zeros(0, np.uint32),
    )


def asked_for(request: Seen) -> int:
    """Bytes of the range that a request names."""
    assert request.range is not None
    first, _, last = request.range.removeprefix("bytes=").partition("-")
    return int(last) + 1 - int(first)


def test_a_window_costs_one_short_range_once_the_index_is_cached(hub: Hub, tmp_path: Path) -> None:
    send(write_noise(tmp_path / "noise"), tag="v1")
    with DatasetReader.open(URL) as reader:
        sampler = WindowSampler([reader], window_length=WINDOW, seed=0)
        batch = sampler.make_batch(1)
        sampler.sample_into(batch, 0)  # the listing, zarr.json, the index, resident columns
        hub.take()
        for number in range(1, 31):
            sampler.sample_into(batch, number)
            seen = hub.take()
            assert len(seen) <= 1, [request.path for request in seen]
            assert sum(map(asked_for, seen)) <= 50_000 >= sum(request.sent for request in seen)
        for number in range(1, 31):
            sampler.sample_into(batch, number)
        assert hub.take() == [], "what was fetched is kept"
    forget_revisions()
    with DatasetReader.open(URL) as reader:  # as another process
        sampler = WindowSampler([reader], window_length=WINDOW, seed=0)
        for number in range(31):
            sampler.sample_into(batch, number)
    assert [request.path for request in hub.take() if "/shards/" in request.path] == []


def test_a_part_costs_what_its_episodes_take(hub: Hub, tmp_path: Path) -> None:
    send(write_noise(tmp_path / "noise"))
    hub.take()
    get(tmp_path / "part", episodes="length == 2002")
    part = sum(request.sent for request in hub.take())
    with DatasetReader.open(tmp_path / "part") as copy:
        assert copy.lengths.tolist() == [2002]
    forget_revisions()
    get(tmp_path / "whole")
    whole = sum(request.sent for request in hub.take())
    payload = 4 * FEATURES * 2003
    assert part < payload + 60_000 < whole / 3, (payload, part, whole)


def losses(run: Path, data: object, updates: int) -> list[float]:
    config = TrainConfig(
        run=run,
        data=(data,),  # type: ignore[arg-type]
        updates=updates,
        model_width=16,
        layers=1,
        heads=2,
        head_width=16,
        batch_size=4,
        context_length=16,
    )
    train(config)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_training_from_the_hub_gives_the_losses_of_a_copy_here(hub: Hub, tmp_path: Path) -> None:
    noise = write_noise(tmp_path / "noise")
    send(noise, tag="v1")
    here = losses(tmp_path / "here", noise, 200)
    hub.take()
    hub.fail("cut", at=60, count=2)
    assert losses(tmp_path / "there", RemotePath(URL), 200) == here
    assert [request.status for request in hub.take()].count(0) == 2

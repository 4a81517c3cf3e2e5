"""Snapshots come back as they were, damage is named, and the registry never shows half a policy."""

import json
from pathlib import Path

import pytest
import torch

from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.policy.registry import PolicyRegistry, resolve_policy
from retold.policy.snapshot import load_snapshot
from retold.schemas.commit import Snapshot
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.errors import PolicyError, UsageError
from retold.schemas.spaces import BoxSpace, DiscreteSpace

SCHEMA = DatasetSchema(
    tasks=(
        TaskDescription(
            name="made-up", kwargs={"size": 3}, code_version="1", limit_is="truncation", horizon=9
        ),
    ),
    observation_space=BoxSpace((2,), "float32", float("-inf"), float("inf")),
    action_space=DiscreteSpace(3),
)
SEEN = Snapshot(dataset_id="0" * 32, number=4, sha256="a" * 64)


def make_policy(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    return Policy(SCHEMA, ArchitectureConfig(model_width=16, layers=1, heads=2), (0.9, 0.99), 0.99)


@pytest.fixture
def registry(tmp_path: Path) -> PolicyRegistry:
    return PolicyRegistry.create(tmp_path / "run")


def test_a_snapshot_comes_back_as_it_was(registry: PolicyRegistry) -> None:
    policy = make_policy()
    folder = registry.publish(policy, update=7, snapshots=[SEEN])
    loaded, description = load_snapshot(folder)
    assert loaded.schema == SCHEMA
    assert loaded.discounts == (0.9, 0.99) and loaded.acting_discount == 0.99
    assert (description.update, description.snapshots) == (7, (SEEN,))
    weights, stored = policy.state_dict(), loaded.state_dict()
    assert weights.keys() == stored.keys()
    assert all(torch.equal(weights[name], stored[name]) for name in weights)
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.safetensors"]


def test_the_policy_id_names_the_weights(registry: PolicyRegistry) -> None:
    folders = [registry.publish(make_policy(seed), update=seed) for seed in (1, 2)]
    assert len({load_snapshot(folder)[1].policy_id for folder in folders}) == 2


def test_an_empty_registry_has_no_policy(registry: PolicyRegistry) -> None:
    assert registry.latest() is None
    choice = resolve_policy(str(registry.path))
    assert choice.newest() is None
    assert choice.identity == f"registry:{registry.registry_id}"


def test_the_newest_policy_is_the_last_published(registry: PolicyRegistry) -> None:
    choice = resolve_policy(str(registry.path))
    for update in (5, 10):
        assert registry.publish(make_policy(), update=update) == registry.latest()
        assert choice.newest() == registry.latest()
    assert [path.name for path in sorted((registry.path / "policies").iterdir())] == [
        "00000005",
        "00000010",
    ]


def test_publishing_an_update_again_replaces_nothing(registry: PolicyRegistry) -> None:
    folder = registry.publish(make_policy(1), update=5)
    before = (folder / "policy.safetensors").read_bytes()
    assert registry.publish(make_policy(2), update=5) == folder
    assert (folder / "policy.safetensors").read_bytes() == before


def test_a_registry_keeps_its_id(registry: PolicyRegistry) -> None:
    assert PolicyRegistry.create(registry.path).registry_id == registry.registry_id
    assert PolicyRegistry.open(registry.path).registry_id == registry.registry_id


def test_policy_arguments_are_told_apart(registry: PolicyRegistry, tmp_path: Path) -> None:
    folder = registry.publish(make_policy(), update=5)
    assert resolve_policy("random").identity == "random"
    assert resolve_policy("random").newest() is None
    assert resolve_policy(str(folder)).identity == load_snapshot(folder)[1].policy_id
    assert resolve_policy(str(folder)).newest() == folder
    with pytest.raises(PolicyError, match="nothing-here"):
        resolve_policy(str(tmp_path / "nothing-here"))


def flip_a_byte(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_damaged_weights_are_named(registry: PolicyRegistry) -> None:
    folder = registry.publish(make_policy(), update=5)
    flip_a_byte(folder / "policy.safetensors")
    with pytest.raises(PolicyError, match=r"policy\.safetensors: the weights are not those"):
        load_snapshot(folder)


def test_missing_weights_are_named(registry: PolicyRegistry) -> None:
    folder = registry.publish(make_policy(), update=5)
    (folder / "policy.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"policy\.safetensors: it cannot be read"):
        load_snapshot(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"policy_version": 1}', b"\xff"])
def test_a_damaged_description_is_named(registry: PolicyRegistry, content: bytes) -> None:
    folder = registry.publish(make_policy(), update=5)
    (folder / "policy.json").write_bytes(content)
    with pytest.raises(PolicyError, match=r"policy\.json"):
        load_snapshot(folder)


def test_a_version_to_come_is_refused(registry: PolicyRegistry) -> None:
    folder = registry.publish(make_policy(), update=5)
    content = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps({**content, "policy_version": 99}))
    with pytest.raises(PolicyError, match="policy_version is 99"):
        load_snapshot(folder)


@pytest.mark.parametrize("content", ["00000099\n", "", "../elsewhere\n"])
def test_a_wrong_latest_is_named(registry: PolicyRegistry, content: str) -> None:
    registry.publish(make_policy(), update=5)
    (registry.path / "LATEST").write_text(content)
    with pytest.raises(PolicyError, match="LATEST"):
        registry.latest()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--model-width is 20.*multiple of 8"):
        ArchitectureConfig(model_width=20, heads=4)
    with pytest.raises(UsageError, match="--attention-window is 0"):
        ArchitectureConfig(attention_window=0)

"""Small policies, published as if they had been trained, and their ways to the Hub and back."""

from pathlib import Path
from typing import Any

import torch

from retold.cli.pull_policy import PullPolicyConfig, PullPolicyResult, pull_policy
from retold.cli.push_policy import PushPolicyConfig, PushPolicyResult, push_policy
from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.policy.registry import PolicyRegistry
from retold.policy.snapshot import load_snapshot
from retold.schemas.canonical import encode_json
from retold.schemas.commit import Snapshot
from retold.schemas.dataset_schema import DatasetSchema
from retold.tasks.registry import task_schema
from retold.train.config import TrainConfig

NAME = "me/walker"
SMALL = {"model_width": 16, "layers": 1, "heads": 2}
ELSEWHERE = Snapshot(dataset_id="0" * 32, number=4, sha256="a" * 64)


def publish(
    run: Path,
    *,
    update: int = 5,
    snapshots: tuple[Snapshot, ...] = (ELSEWHERE,),
    data: tuple[str, ...] = ("/home/ann/raw",),
    schema: DatasetSchema | None = None,
) -> Path:
    """A run that looks as if it had been trained; the newest policy's folder."""
    run.mkdir(exist_ok=True)
    config = TrainConfig(run=Path("/home/ann/run"), data=tuple(map(Path, data)), **SMALL)  # type: ignore[arg-type]
    (run / "config.json").write_bytes(encode_json({**config.to_json(), "data": list(data)}))
    torch.manual_seed(update)
    schema = schema or task_schema("maze", {"size": 5})
    policy = Policy(schema, ArchitectureConfig(**SMALL), (0.9, 0.99), 0.99)  # type: ignore[arg-type]
    return PolicyRegistry.create(run).publish(policy, update=update, snapshots=snapshots)


def share(policy: Path, **settings: Any) -> PushPolicyResult:
    return push_policy(
        PushPolicyConfig(policy=policy, repository=NAME, **{"license": "mit", **settings})
    )


def fetch(output: Path, repository: str = NAME) -> PullPolicyResult:
    return pull_policy(PullPolicyConfig(repository=repository, output=output))


def evaluation_of(policy: Path, **changes: Any) -> bytes:
    policy_id = load_snapshot(policy)[1].policy_id
    return encode_json({"policy": policy_id, "mean_return": 1.5, "success": 0.25} | changes)

"""Writes a golden policy snapshot: `python tests/golden_policy.py FOLDER`.

It goes with the policy_version that the code of its day writes. Fixtures are added, never edited.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retold.policy.acting import PolicyActor
from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.policy.snapshot import encode_snapshot, load_snapshot
from retold.schemas.commit import Snapshot
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.spaces import BoxSpace, DictSpace, DiscreteSpace
from retold.schemas.vocabulary import GoalFamily, GoalVocabulary

STEPS = 9
"""Longer than the attention window."""
SCHEMA = DatasetSchema(
    tasks=(
        TaskDescription(
            name="golden",
            kwargs={"size": 3},
            code_version="1",
            limit_is="truncation",
            horizon=9,
            vocabulary=GoalVocabulary(
                (GoalFamily("occurrence", (("take", "leave"), ("wood", "stone"))),)
            ),
            max_instruction_length=2,
        ),
    ),
    observation_space=DictSpace(
        (
            ("map", BoxSpace((2, 2), "uint8", 0, 3)),
            ("vector", BoxSpace((2,), "float32", -1.0, 1.0)),
        )
    ),
    action_space=DiscreteSpace(3, start=1),
)


def act_golden(folder: Path) -> list[list[float]]:
    """`[steps, actions]`: the chances that the stored policy gives in an episode made by arithmetic."""
    policy, description = load_snapshot(folder)
    actor = PolicyActor(policy, 2, description.policy_id, description.update)
    actor.begin(1, (3, 0))
    chances: list[list[float]] = []
    for step in range(STEPS):
        observation: dict[str, Any] = {
            "observation/map": (np.arange(4).reshape(2, 2) * step % 4).astype(np.uint8),
            "observation/vector": np.array([step / 8 - 0.5, 0.75 - step / 4], np.float32) / 2,
        }
        numbers = actor.act([1], [observation], [int(step >= 4)])
        chances.append(numbers[0].tolist())
        actor.record(1, {"action": np.int64(1 + step % 3)}, float(step == 3), step == 5)
    return chances


def write_golden(folder: Path) -> None:
    """A tiny policy whose every weight matters, and what it answers."""
    torch.manual_seed(0)
    architecture = ArchitectureConfig(
        model_width=8, layers=2, heads=2, attention_window=4, head_width=4, critics=2
    )
    policy = Policy(SCHEMA, architecture, (0.5, 0.75), 0.75)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
        for name, buffer in policy.named_buffers():
            if name.endswith(("norm.mean", "norm.variance")):
                buffer.add_(torch.rand(buffer.shape))
    seen = Snapshot(dataset_id="0" * 32, number=4, sha256="a" * 64)
    folder.mkdir(parents=True)
    for name, content in encode_snapshot(policy, update=7, snapshots=[seen]).items():
        (folder / name).write_bytes(content)
    (folder / "expected.json").write_text(
        json.dumps({"chances": act_golden(folder)}, indent=1) + "\n"
    )


if __name__ == "__main__":
    write_golden(Path(sys.argv[1]))

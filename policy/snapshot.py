"""Policy snapshots: `policy.json` and `policy.safetensors`. Nothing is ever unpickled."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Snapshot
from retold.schemas.errors import PolicyError, RetoldError
from retold.schemas.policy import POLICY_VERSION, PolicyDescription


def encode_snapshot(
    policy: Policy,
    *,
    update: int,
    snapshots: Sequence[Snapshot] = (),
    details: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """The snapshot's files by name."""
    weights = save_tensors(
        {name: tensor.contiguous() for name, tensor in policy.state_dict().items()}
    )
    description = PolicyDescription(
        schema=policy.schema,
        architecture=policy.architecture.to_json(),
        discounts=policy.discounts,
        acting_discount=policy.acting_discount,
        update=update,
        weights_sha256=sha256_hex(weights),
        snapshots=tuple(snapshots),
        details=details or {},
    )
    return {"policy.safetensors": weights, "policy.json": description.encoded}


def load_snapshot(directory: Path) -> tuple[Policy, PolicyDescription]:
    """A policy, ready to act, and its description.

    Raises:
        PolicyError: a file is missing, damaged or of another version; it is named.
    """
    description = read_description(directory)
    path = directory / "policy.safetensors"
    weights = _read(path)
    if sha256_hex(weights) != description.weights_sha256:
        raise PolicyError(
            f"{path}: the weights are not those that policy.json names (their hash differs). "
            f"Use another snapshot of the run."
        )
    policy = Policy(
        description.schema,
        ArchitectureConfig.from_json(description.architecture),
        description.discounts,
        description.acting_discount,
    )
    try:
        policy.load_state_dict(load_tensors(weights))
    except (RuntimeError, SafetensorError) as error:
        raise PolicyError(
            f"{path}: the weights do not fit the architecture. Use another snapshot of the run."
        ) from error
    return policy.eval(), description


def read_description(directory: Path) -> PolicyDescription:
    """What `policy.json` says.

    Raises:
        PolicyError: it is missing, damaged or of another version.
    """
    path = directory / "policy.json"
    content = _read(path)
    try:
        fields = json.loads(content)
        version = fields["policy_version"]
        if version not in range(1, POLICY_VERSION + 1):
            raise PolicyError(
                f"{path}: policy_version is {version}, but this retold reads 1 to {POLICY_VERSION}. "
                f"Upgrade with `pip install -U retold`."
            )
        return PolicyDescription.from_json(fields)
    except RetoldError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyError(
            f"{path}: this is not a policy description. Use another snapshot of the run."
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolicyError(
            f"{path}: it cannot be read: {error.strerror}. Give a folder that holds policy.json "
            f"and policy.safetensors, or a run of `retold train`."
        ) from error

"""Policy snapshots: `policy.json` and `policy.safetensors`. Nothing is ever unpickled."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from retold.policy.architecture import ArchitectureConfig
from retold.policy.network import Policy
from retold.schemas.canonical import sha256_hex
from retold.schemas.commit import Snapshot
from retold.schemas.errors import PolicyError, RetoldError
from retold.schemas.policy import POLICY_VERSION, PolicyDescription

_DAMAGE = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError),
    *(RuntimeError, ArithmeticError),  # of deep nesting, and of torch
)
"""What nonsense in `policy.json` raises."""
_MOST_UNITS = 10_000_000
_MOST_PARTS = 1_000
"""Far beyond what policies have, and little enough to be looked at."""


def encode_snapshot(
    policy: Policy,
    *,
    update: int,
    snapshots: Sequence[Snapshot] = (),
    details: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """The snapshot's files by name."""
    weights = save_tensors(
        {name: tensor.cpu().contiguous() for name, tensor in policy.state_dict().items()}
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
    policy = _build(description, str(directory / "policy.json"))
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
    return parse_description(_read(path), str(path))


def parse_description(content: bytes, where: str) -> PolicyDescription:
    """What the content of a `policy.json` says.

    Args:
        content: of the file.
        where: it lies, for messages.

    Raises:
        PolicyError: it is damaged or of another version.
    """
    try:
        fields = json.loads(content)
        version = fields["policy_version"]
        if version not in range(1, POLICY_VERSION + 1):
            raise PolicyError(
                f"{where}: policy_version is {version}, but this retold reads 1 to "
                f"{POLICY_VERSION}. Upgrade with `pip install -U retold`."
            )
        return PolicyDescription.from_json(fields)
    except PolicyError:
        raise
    except (*_DAMAGE, RetoldError) as error:
        raise PolicyError(
            f"{where}: this is not a policy description. Use another snapshot of the run."
        ) from error


def measure_weights(description: PolicyDescription, where: str) -> int:
    """Bytes that the weights of a described policy have; nothing of that size is made.

    Args:
        description: of a stranger's policy, perhaps.
        where: it lies, for messages.

    Raises:
        PolicyError: it asks for a network that nobody makes.
    """
    vocabularies = [t.vocabulary.size for t in description.schema.tasks if t.vocabulary is not None]
    units = max([0, *_numbers(description.architecture), *vocabularies])
    lists = [value for value in description.architecture.values() if isinstance(value, list)]
    named = [description.architecture.get(name) for name in ("layers", "critics", "head_layers")]
    parts = max([*_numbers({"": named}), *map(len, [description.discounts, *lists])])
    if units > _MOST_UNITS or parts > _MOST_PARTS:
        raise PolicyError(
            f"{where}: it asks for {max(units, parts):,} units, goals or layers, which no policy "
            f"has. Do not use it."
        )
    with torch.device("meta"):
        policy = _build(description, where)
    return sum(tensor.numel() * tensor.element_size() for tensor in policy.state_dict().values())


def _build(description: PolicyDescription, where: str) -> Policy:
    """The network that a description asks for, its weights drawn."""
    try:
        return Policy(
            description.schema,
            ArchitectureConfig.from_json(description.architecture),
            description.discounts,
            description.acting_discount,
        )
    except (*_DAMAGE, RetoldError) as error:
        raise PolicyError(
            f"{where}: its architecture makes no network ({' '.join(str(error).split())[:120]}). "
            f"Use another snapshot of the run."
        ) from error


def _numbers(fields: Mapping[str, Any]) -> list[int]:
    """Whole numbers among values, and in lists of them."""
    lists = [value if isinstance(value, list) else [value] for value in fields.values()]
    return [item for items in lists for item in items if isinstance(item, int)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolicyError(
            f"{path}: it cannot be read: {error.strerror}. Give a folder that holds policy.json "
            f"and policy.safetensors, or a run of `retold train`."
        ) from error

"""`policy.json` of a policy snapshot: all that is needed to rebuild the network and its task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from retold.schemas.canonical import encode_json, require_count, require_hex, sha256_hex
from retold.schemas.commit import Snapshot
from retold.schemas.dataset_schema import DatasetSchema

POLICY_VERSION = 2
"""Version of the snapshot's layout; 1 had fewer architecture fields."""


@dataclass(frozen=True, kw_only=True)
class PolicyDescription:
    """A policy without its weights."""

    schema: DatasetSchema
    """Spaces, tasks and vocabulary of the data it learned from; `schema.tasks[0]` is its task."""
    architecture: Mapping[str, Any]
    """Fields of the architecture configuration, as JSON values."""
    discounts: tuple[float, ...]
    """That values were learned for; empty where the objective has no values."""
    acting_discount: float | None
    """The discount whose actor head acts; one of `discounts`, or None if there are none."""
    update: int
    """Trainer updates behind the weights."""
    weights_sha256: str
    """Of `policy.safetensors`."""
    snapshots: tuple[Snapshot, ...] = ()
    """Dataset snapshots that it was trained on, newest last."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth keeping. JSON values."""

    def to_json(self) -> dict[str, Any]:
        """The description as plain JSON values."""
        return {
            "policy_version": POLICY_VERSION,
            "schema": self.schema.to_json(),
            "architecture": dict(self.architecture),
            "discounts": list(self.discounts),
            "acting_discount": self.acting_discount,
            "update": self.update,
            "weights_sha256": self.weights_sha256,
            "snapshots": [snapshot.to_json() for snapshot in self.snapshots],
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "PolicyDescription":
        """The inverse of `to_json`.

        Raises:
            ValueError: something is not what it must be; or KeyError, TypeError.
        """
        schema = DatasetSchema.from_json(content["schema"])
        names = [task.name for task in schema.tasks]
        discounts = list(content["discounts"])
        if discounts or content["acting_discount"] is not None:
            discounts.append(content["acting_discount"])
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError("there is no task, or one without a name")
        leaves = (*schema.observation_leaves, *schema.action_leaves)
        if any(np.dtype(leaf.dtype).kind not in "biuf" for leaf in leaves):
            raise ValueError("a space holds neither numbers nor text")
        if not all(isinstance(d, int | float) for d in discounts):
            raise ValueError("a discount is no number")
        if not isinstance(content["architecture"], Mapping):
            raise TypeError("the architecture is no object")
        return cls(
            schema=schema,
            architecture=content["architecture"],
            discounts=tuple(content["discounts"]),
            acting_discount=content["acting_discount"],
            update=require_count(content["update"]),
            weights_sha256=require_hex(content["weights_sha256"], 64),
            snapshots=tuple(Snapshot.from_json(item) for item in content["snapshots"]),
            details=content["details"],
        )

    @cached_property
    def encoded(self) -> bytes:
        """The bytes of `policy.json`."""
        return encode_json(self.to_json())

    @property
    def policy_id(self) -> str:
        """16 hex digits that name the snapshot, weights included."""
        return sha256_hex(self.encoded)[:16]

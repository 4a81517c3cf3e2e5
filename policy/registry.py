"""A run's policy registry: `policies/<update>/`, `LATEST`, which collectors look at, and `BEST`."""

import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retold.policy.network import Policy
from retold.policy.snapshot import encode_snapshot, read_description
from retold.schemas.commit import Snapshot
from retold.schemas.errors import PolicyError
from retold.schemas.faults import reach


class PolicyRegistry:
    """Policies of one run. Each is whole before `LATEST` names it."""

    def __init__(self, path: Path, registry_id: str) -> None:
        self.path = path
        self.registry_id = registry_id

    @classmethod
    def create(cls, path: Path) -> "PolicyRegistry":
        """Open a registry, making it first if there is none."""
        path.mkdir(parents=True, exist_ok=True)
        if not (path / "registry_id").exists():
            _write_whole(path / "registry_id", f"{uuid.uuid4().hex}\n".encode())
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "PolicyRegistry":
        """Open an existing registry."""
        try:
            registry_id = (path / "registry_id").read_text().strip()
        except OSError as error:
            raise PolicyError(
                f"{path}: there is no policy registry here (registry_id is missing). Give a run of "
                f"`retold train` or `retold loop`, or a policy snapshot."
            ) from error
        return cls(path, registry_id)

    def latest(self) -> Path | None:
        """The newest policy's folder, or None before the first is published."""
        return self._named("LATEST")

    def best(self) -> Path | None:
        """The folder of the policy that was evaluated best, or None where none was evaluated."""
        return self._named("BEST")

    def _named(self, file: str) -> Path | None:
        try:
            name = (self.path / file).read_text().strip()
        except FileNotFoundError:
            return None
        folder = self.path / "policies" / name
        if not name.isdigit() or not folder.is_dir():
            raise PolicyError(
                f"{self.path / file}: it names policy {name!r}, which is not in policies/. "
                f"Publish again with `retold train {self.path} --resume`."
            )
        return folder

    def publish(self, policy: Policy, *, update: int, snapshots: Sequence[Snapshot] = ()) -> Path:
        """Add a policy and let `LATEST` name it; publishing an update again replaces nothing."""
        folder = self.path / "policies" / f"{update:08d}"
        reach("publish-before")
        if not folder.exists():
            aside = self.path / "policies" / f".{folder.name}.{uuid.uuid4().hex}"
            aside.mkdir(parents=True)
            for name, content in encode_snapshot(
                policy, update=update, snapshots=snapshots
            ).items():
                _write_whole(aside / name, content)
            reach("publish-inside")
            try:
                os.rename(aside, folder)
            except OSError:
                shutil.rmtree(aside)
                if not folder.exists():
                    raise
        _write_whole(self.path / "LATEST", f"{folder.name}\n".encode())
        reach("publish-after")
        return folder

    def mark_best(self, update: int) -> None:
        """Let `BEST` name a published policy; the checkpoint of its update is kept, too."""
        folder = self.path / "policies" / f"{update:08d}"
        assert folder.is_dir(), folder
        _write_whole(self.path / "BEST", f"{folder.name}\n".encode())


@dataclass(frozen=True)
class PolicyChoice:
    """What a `--policy` argument names."""

    identity: str
    """`random`, a policy id, or `registry:<id>`: what must not change under one run seed."""
    registry: PolicyRegistry | None = None
    snapshot: Path | None = None

    def newest(self) -> Path | None:
        """The snapshot to act with now; None means random actions."""
        return self.snapshot if self.registry is None else self.registry.latest()


def resolve_policy(argument: str) -> PolicyChoice:
    """What `random`, a snapshot folder, a run (its registry), or its file `BEST` stands for.

    Raises:
        PolicyError: the path is none of these.
    """
    if argument == "random":
        return PolicyChoice("random")
    path = Path(argument)
    if (path / "policy.json").exists():
        return PolicyChoice(read_description(path).policy_id, snapshot=path)
    if path.name in ("BEST", "LATEST") and path.is_file():
        registry = PolicyRegistry.open(path.parent)
        snapshot = registry.best() if path.name == "BEST" else registry.latest()
        assert snapshot is not None
        return PolicyChoice(read_description(snapshot).policy_id, snapshot=snapshot)
    if path.name == "policies" and (path.parent / "registry_id").exists():
        path = path.parent
    registry = PolicyRegistry.open(path)
    return PolicyChoice(f"registry:{registry.registry_id}", registry=registry)


def _write_whole(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)

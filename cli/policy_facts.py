"""What a model card tells of a policy: how it was trained, on which datasets, and what it scored."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retold.dataset.hub_client import HubRepository
from retold.dataset.hub_names import HUB_PROTOCOL, HubName, parse_hub_name
from retold.dataset.hub_origin import read_origin
from retold.dataset.log import CommitLog
from retold.dataset.paths import dataset_path, split_snapshot
from retold.dataset.remote_path import RemotePath
from retold.schemas.commit import Snapshot
from retold.schemas.errors import DatasetError, PolicyError, RetoldError, UsageError

if TYPE_CHECKING:
    from retold.schemas.policy import PolicyDescription

logger = logging.getLogger(__name__)

LARGEST_FACTS = 10_000_000
"""Of `config.json` and `evaluation.json`, in bytes."""
_OF_THIS_MACHINE = frozenset(
    ("run", "data", "source", "cache", "threads", "resume", "follow", "keep_checkpoints", "dry_run")
)
"""Fields of a training run that tell of places here, and nothing of the policy."""
_MOST_TAGS = 50


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """A dataset that a policy was trained on, and where it is on the Hub if that is known."""

    snapshot: Snapshot
    name: HubName | None = None
    """With the tag, or else the commit, that holds the snapshot."""


def run_of(snapshot: Path) -> Path | None:
    """The run whose registry a policy's folder belongs to."""
    return snapshot.parent.parent if snapshot.parent.name == "policies" else None


def read_training(snapshot: Path) -> dict[str, Any] | None:
    """The configuration that a policy was trained with; None where it is not known.

    What only means something on this machine is left out.
    """
    content = _read_config(snapshot)
    if content is None:
        return None
    return {name: value for name, value in content.items() if name not in _OF_THIS_MACHINE}


def find_datasets(
    snapshot: Path, description: "PolicyDescription", named: Sequence[str]
) -> tuple[TrainedOn, ...]:
    """The datasets that a policy was trained on.

    Where they are is known of those that training read from the Hub or from a pulled copy, and of
    those that are named.

    Args:
        snapshot: the policy's folder.
        description: of it.
        named: repositories that hold them, as `OWNER/NAME` or `OWNER/NAME@TAG`.

    Raises:
        DatasetError: the policy was not trained on what is named.
    """
    found = {snapshot: TrainedOn(snapshot=snapshot) for snapshot in description.snapshots}
    data = (_read_config(snapshot) or {}).get("data")
    if isinstance(data, list) and len(data) == len(description.snapshots):
        for place, seen in zip(data, description.snapshots, strict=True):
            name = _locate(str(place), seen)
            if name is not None:
                found[seen] = TrainedOn(snapshot=seen, name=_name_release(name, seen))
    for text in named:
        trained = _verify(parse_hub_name(text), description.snapshots)
        found[trained.snapshot] = trained
    return tuple(found.values())


def read_evaluation(
    snapshot: Path, description: "PolicyDescription", given: Path | None
) -> dict[str, Any] | None:
    """What `retold evaluate --json` or the loop found of this very policy.

    Args:
        snapshot: the policy's folder.
        description: of it.
        given: file to read; None: look for one beside the policy and in its run.

    Raises:
        PolicyError: what was given is no evaluation, or one of another policy.
    """
    if given is not None:
        return _check_evaluation(given, _read_json(given, required=True), description)
    run = run_of(snapshot)
    for path in [folder / "evaluation.json" for folder in (snapshot, run) if folder is not None]:
        try:
            content = _read_json(path)
            if content is not None:
                return _check_evaluation(path, content, description)
        except PolicyError as error:
            logger.warning("%s It is left out.", error)
    return None if run is None else _read_loop(run, description)


def _read_config(snapshot: Path) -> dict[str, Any] | None:
    run = run_of(snapshot)
    return _read_json(snapshot / "config.json") or (
        None if run is None else _read_json(run / "config.json")
    )


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > LARGEST_FACTS:
            raise PolicyError(
                f"{path}: it has {path.stat().st_size:,} bytes, but {LARGEST_FACTS:,} is the most "
                f"that is read. Give another file."
            )
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise PolicyError(f"{path}: there is no such file. Check its name.") from None
        return None
    except OSError as error:
        raise PolicyError(
            f"{path}: it cannot be read: {error.strerror}. Make it readable."
        ) from error
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{path}: this is not JSON. Make it anew, or delete it.") from error
    if not isinstance(content, dict):
        raise PolicyError(f"{path}: this is not a JSON object. Make it anew, or delete it.")
    return content


def _locate(place: str, seen: Snapshot) -> HubName | None:
    """The repository that training read a dataset from, or that its copy was pulled from."""
    try:
        folder, _ = split_snapshot(dataset_path(place))
        if isinstance(folder, RemotePath):
            return parse_hub_name(str(folder)) if folder.protocol == HUB_PROTOCOL else None
        if CommitLog.open(folder).dataset_id != seen.dataset_id:
            return None
        origin = read_origin(folder)
    except RetoldError:
        return None  # it is no longer there, or is another by now
    if origin is None or seen.number > origin.through:
        return None
    return HubName(origin.repository, origin.commit)


def _name_release(name: HubName, seen: Snapshot) -> HubName:
    """The name with a tag, if one can be found that has the snapshot."""
    if name.revision is not None and not name.is_pinned:
        return name
    try:
        tags = HubRepository(name).read_tags()
        for tag, commit in tags.items():
            if commit == name.revision:
                return replace(name, revision=tag)
        return name if name.is_pinned else _find_release(name, seen)
    except RetoldError as error:
        logger.warning("%s The card names no release of it.", error)
        return name


def _verify(name: HubName, snapshots: Sequence[Snapshot]) -> TrainedOn:
    """See that a repository holds one of the snapshots, and find its release."""
    log = CommitLog.open(RemotePath(str(name)))
    seen = _find_snapshot(log, snapshots)
    if seen is None:
        known = ", ".join(f"{s.dataset_id} at commit {s.number}" for s in snapshots) or "none"
        raise DatasetError(
            f"{name}: the policy was not trained on this dataset ({log.dataset_id}) as it is there. "
            f"It was trained on: {known}. Name another dataset or tag with --trained-on."
        )
    if name.revision is None:
        name = _find_release(name, seen)
    return TrainedOn(snapshot=seen, name=name)


def _find_snapshot(log: CommitLog, snapshots: Sequence[Snapshot]) -> Snapshot | None:
    """The newest of the snapshots that is in a log, or that what is in it was copied from."""
    head = log.head()
    for seen in reversed(snapshots):
        if head is not None and log.dataset_id == seen.dataset_id and seen.number <= head.number:
            if log.snapshot(seen.number) == seen:
                return seen
        elif log.dataset_id != seen.dataset_id and any(
            seen.to_json() in commit.details.get("parents", ()) for commit in log.commits()
        ):
            return seen
    return None


def _find_release(name: HubName, seen: Snapshot) -> HubName:
    """The first release that has a snapshot; without one, what the main branch is now."""
    repository = HubRepository(name)
    for tag in sorted(repository.read_tags())[:_MOST_TAGS]:
        release = replace(name, revision=tag)
        log = CommitLog.open(RemotePath(str(release)))
        if _find_snapshot(log, [seen]) is not None:
            return release
    return replace(name, revision=repository.find_head())


def _check_evaluation(
    path: Path, content: Mapping[str, Any] | None, description: "PolicyDescription"
) -> dict[str, Any]:
    assert content is not None
    if not _is_score(content.get("mean_return")) or "policy" not in content:
        raise PolicyError(
            f"{path}: this is not what `retold evaluate` prints with --json. Make it anew."
        )
    if content["policy"] != description.policy_id:
        raise PolicyError(
            f"{path}: it tells of policy {str(content['policy'])[:40]!r}, but this is "
            f"{description.policy_id}. Evaluate this one: `retold evaluate POLICY --json`."
        )
    return dict(content)


def _is_score(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _read_loop(run: Path, description: "PolicyDescription") -> dict[str, Any] | None:
    """What the loop scored at the end of the iteration that made a policy."""
    plan = _read_json(run / "loop.json") or {}
    settings = plan.get("evaluate")
    path = run / "iterations.jsonl"
    if not isinstance(settings, dict) or not path.is_file():
        return None
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a loop that was killed
        if not isinstance(row, dict) or row.get("updates") != description.update:
            continue
        if _is_score(row.get("evaluation_return")):
            known = {name: settings[name] for name in ("episodes", "action") if name in settings}
            return known | {
                "task": description.schema.tasks[0].name,
                "policy": description.policy_id,
                "update": description.update,
                "mean_return": row["evaluation_return"],
                "success": row.get("evaluation_success"),
                "seed": plan.get("seed"),
            }
    return None


def check_named(named: Sequence[str]) -> None:
    """See that names of datasets are names, before anything is asked.

    Raises:
        UsageError: one is not.
    """
    for text in named:
        parse_hub_name(text)
    if len({parse_hub_name(text).repository for text in named}) < len(named):
        raise UsageError("--trained-on names a repository twice. Name each once.")

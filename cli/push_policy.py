"""`retold push-policy`: a policy on the Hub, with a model card, as exactly one commit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from retold.cli.policy_card import PolicyFacts, make_policy_card
from retold.cli.policy_facts import check_named, find_datasets, read_evaluation, read_training
from retold.dataset.hub_branch import (
    HubBranch,
    PlannedFile,
    carry_out,
    plan_push,
    read_branch,
)
from retold.dataset.hub_card_text import read_license
from retold.dataset.hub_client import HubRepository, Upload
from retold.dataset.hub_content import upload_bytes
from retold.dataset.hub_flags import PushFlags
from retold.dataset.hub_names import HubName, parse_hub_target
from retold.dataset.hub_scan import refuse_leaks, scan_files
from retold.schemas.canonical import encode_json
from retold.schemas.errors import PolicyError, UsageError

if TYPE_CHECKING:
    from retold.schemas.policy import PolicyDescription

POLICY_FILES = ("policy.json", "policy.safetensors", "config.json", "evaluation.json")
"""What a push of a policy makes, besides the card; the rest of a repository it leaves alone."""
LARGEST_DESCRIPTION = 16_000_000
"""Of `policy.json`, in bytes."""


@dataclass(frozen=True, kw_only=True)
class PushPolicyConfig(PushFlags):
    """What `retold push-policy` is asked."""

    policy: Path
    """Policy to send: folder of a snapshot, or a run (its newest policy). It is never written to."""
    trained_on: tuple[str, ...] = ()
    """Dataset on the Hub that it was trained on, OWNER/NAME or OWNER/NAME@TAG; may be given several
    times. What training read from the Hub, or from a pulled copy, is known without."""
    evaluation: Path | None = None
    """File with what `retold evaluate POLICY --json` printed; none takes evaluation.json of the
    snapshot or its run, or what the loop scored, if that is of this very policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_named(self.trained_on)


@dataclass(frozen=True, kw_only=True)
class PushPolicyResult:
    """What was sent, or would be."""

    repository: str
    policy_id: str
    update: int
    """Trainer updates behind the weights."""
    is_dry_run: bool
    commit: str | None
    """Of the repository; None if it was only planned."""
    tag: str | None
    files: int
    """Files that are new or changed."""
    bytes: int
    """Their size. What the Hub has already, under whatever name, is not sent again."""
    unchanged: int
    removed: int
    """Files of an earlier policy that this one has not."""
    datasets: tuple[str, ...]
    """On the Hub, that it was trained on; those that are not there have an id alone."""
    is_evaluated: bool
    """Whether the card has a score."""
    changes: tuple[PlannedFile, ...] = field(default=())
    """With --dry-run, each of them."""


def push_policy(config: PushPolicyConfig) -> PushPolicyResult:
    """Plan a push, and make it unless it is a dry run.

    Raises:
        PolicyError: there is no policy, or it is damaged.
        DatasetError: it cannot be sent; the repository's main branch is as it was.
    """
    from retold.policy.registry import resolve_policy
    from retold.policy.snapshot import load_snapshot

    if str(config.policy) == "random":
        raise UsageError("Random actions are no policy that could be pushed. Give a run.")
    folder = resolve_policy(str(config.policy)).newest()
    if folder is None:
        raise PolicyError(
            f"{config.policy}: no policy is published yet. Train until the first one is."
        )
    policy, description = load_snapshot(folder)
    repository = HubRepository(parse_hub_target(config.repository), "model")
    if not config.dry_run:
        repository.check_login()
    branch = read_branch(repository)
    _refuse_other(branch, description)
    facts = PolicyFacts(
        description=description,
        parameters={
            name: sum(weight.numel() for weight in part.parameters())
            for name, part in policy.named_children()
        },
        training=read_training(folder),
        datasets=find_datasets(folder, description, config.trained_on),
        evaluation=read_evaluation(folder, description, config.evaluation),
        license=_choose_license(config, branch),
        year=str(datetime.fromtimestamp((folder / "policy.json").stat().st_mtime, UTC).year),
    )
    wanted = _collect_files(folder, repository.name, facts, branch.card)
    return _carry_out(config, folder, branch, facts, wanted)


def _choose_license(config: PushPolicyConfig, branch: HubBranch) -> str:
    name = branch.repository.name
    license = config.license or read_license(branch.card, str(name))
    if license is None:
        raise UsageError(
            f"{name}: under which licence may others use it? Say so with --license, e.g. "
            f"apache-2.0, mit or cc-by-4.0."
        )
    return license


def _refuse_other(branch: HubBranch, description: "PolicyDescription") -> None:
    """Refuse a repository that holds something else, or a policy of another task.

    Raises:
        PolicyError: it does.
    """
    from retold.policy.snapshot import parse_description

    name = branch.repository.name
    foreign = [path for path in POLICY_FILES if path in branch.files]
    if branch.revision is None or not foreign:
        return
    if "policy.json" not in foreign:
        raise PolicyError(
            f"{name}: it holds {foreign[0]} that is none of Retold's (policy.json is missing), and a "
            f"push would replace it. Push to another repository."
        )
    content = branch.revision.read_file("policy.json", LARGEST_DESCRIPTION)
    there = parse_description(content, branch.revision.where("policy.json")).schema
    mine = description.schema
    if there.tasks[0].name != mine.tasks[0].name or (
        there.observation_space != mine.observation_space or there.action_space != mine.action_space
    ):
        raise PolicyError(
            f"{name}: it holds a policy for {there.tasks[0].name!r}, but this one is for "
            f"{mine.tasks[0].name!r} or has other spaces. Push to another repository."
        )


def _collect_files(folder: Path, name: HubName, facts: PolicyFacts, card: str) -> dict[str, Upload]:
    """Every file that the repository shall hold, besides those that are none of ours."""
    from retold.policy.snapshot import read_description

    files = {
        "policy.json": upload_bytes((folder / "policy.json").read_bytes()),
        "policy.safetensors": upload_bytes((folder / "policy.safetensors").read_bytes()),
    }
    if (
        files["policy.safetensors"].sha256 != facts.description.weights_sha256
        or read_description(folder).policy_id != facts.description.policy_id
    ):
        raise PolicyError(f"{folder}: it was changed while it was read. Run again.")
    if facts.training is not None:
        files["config.json"] = upload_bytes(encode_json(facts.training))
    if facts.evaluation is not None:
        files["evaluation.json"] = upload_bytes(encode_json(facts.evaluation))
    made = make_policy_card(name.repository, facts, card)
    return {**files, "README.md": upload_bytes(made.encode())}


def _carry_out(
    config: PushPolicyConfig,
    folder: Path,
    branch: HubBranch,
    facts: PolicyFacts,
    wanted: Mapping[str, Upload],
) -> PushPolicyResult:
    refuse_leaks(
        folder,
        scan_files(wanted),
        allow_paths=config.allow_paths,
        instead="Take it out of the card, config.json or evaluation.json",
    )
    plan = plan_push(branch, wanted, POLICY_FILES, config.tag)
    description = facts.description
    commit = None
    if not config.dry_run:
        commit = carry_out(
            plan,
            marker="policy.json",
            message=f"Push policy {description.policy_id} after {description.update} updates",
            is_private=config.private,
        )
    return PushPolicyResult(
        repository=str(branch.repository.name),
        policy_id=description.policy_id,
        update=description.update,
        is_dry_run=config.dry_run,
        commit=commit,
        tag=config.tag,
        files=len(plan.changed),
        bytes=plan.bytes,
        unchanged=plan.unchanged,
        removed=len(plan.gone),
        datasets=tuple(
            trained.snapshot.dataset_id if trained.name is None else str(trained.name)
            for trained in facts.datasets
        ),
        is_evaluated=facts.evaluation is not None,
        changes=plan.changes if config.dry_run else (),
    )

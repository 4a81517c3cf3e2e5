"""`retold policy show`: what a policy is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from retold.cli.printing import format_fields, format_table
from retold.schemas.errors import PolicyError


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """What `retold policy` is asked."""

    action: Literal["show"]
    """`show` tells what a policy is."""
    policy: Path
    """Folder of a snapshot, or a run (its newest policy)."""


@dataclass(frozen=True, kw_only=True)
class PolicyPage:
    """A policy without its weights."""

    path: str
    policy_id: str
    update: int
    """Trainer updates behind the weights."""
    objective: str
    """What was learned."""
    target_return: float | None
    """Return that a `dt` policy asks for unless told otherwise."""
    task: str
    spaces: Mapping[str, str]
    discounts: tuple[float, ...]
    acting_discount: float | None
    goals: int
    """Of the vocabulary."""
    most_goals: int
    """In an instruction."""
    architecture: Mapping[str, Any]
    parameters: Mapping[str, int]
    """By part of the network."""
    trained_on: tuple[Mapping[str, Any], ...]
    """Dataset snapshots, newest last."""

    def describe(self) -> str:
        """Facts, parameters, architecture."""
        names = ["path", "policy_id", "update", "objective"]
        names += ["target_return"] if self.target_return is not None else []
        names += ["task"]
        names += ["discounts", "acting_discount"] if self.discounts else []
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        facts |= self.spaces
        if self.goals:
            facts |= {"goals": self.goals, "goals_in_an_instruction": self.most_goals}
        total = sum(self.parameters.values())
        parts = [*self.parameters.items(), ("all", total)]
        page = [
            format_fields(facts),
            f"parameters\n{format_table(['part', 'parameters'], parts)}",
            f"architecture\n{format_fields(self.architecture)}",
        ]
        if self.trained_on:
            rows = [[item["dataset_id"], item["number"]] for item in self.trained_on]
            page.append(f"trained on\n{format_table(['dataset', 'snapshot'], rows)}")
        return "\n\n".join(page)


def show_policy(config: PolicyConfig) -> PolicyPage:
    """What a snapshot says of itself; its weights are read and checked.

    Raises:
        PolicyError: there is no policy, or it is damaged.
    """
    from retold.policy.registry import resolve_policy
    from retold.policy.snapshot import load_snapshot

    path = resolve_policy(str(config.policy)).newest()
    if path is None:
        raise PolicyError(
            f"{config.policy}: no policy is published yet. Train until the first one is."
        )
    policy, description = load_snapshot(path)
    schema, task = description.schema, description.schema.tasks[0]
    spaces = {"observation": schema.observation_space, "action": schema.action_space}
    return PolicyPage(
        path=str(path),
        policy_id=description.policy_id,
        update=description.update,
        objective=policy.architecture.objective,
        target_return=float(policy.target_return) if policy.architecture.sees_return else None,
        task=f"{task.name} {dict(task.kwargs)}",
        spaces={name: str(space) for name, space in spaces.items()},
        discounts=description.discounts,
        acting_discount=description.acting_discount,
        goals=0 if task.vocabulary is None else task.vocabulary.size,
        most_goals=policy.most_goals,
        architecture=policy.architecture.to_json(),
        parameters={
            name: sum(weight.numel() for weight in part.parameters())
            for name, part in policy.named_children()
        },
        trained_on=tuple(snapshot.to_json() for snapshot in description.snapshots),
    )

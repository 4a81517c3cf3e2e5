"""The model card (`README.md`) of a policy on the Hub."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retold.cli.policy_facts import TrainedOn
from retold.dataset.hub_card import Retelling, describe_goals, describe_spaces, describe_task
from retold.dataset.hub_card_text import cite, plain, table, table_of_records, write_card
from retold.schemas.dataset_schema import TaskDescription
from retold.schemas.policy import PolicyDescription

_MOST_GOALS = 20
_SCORES = (
    ("mean_return", "mean_reward", "mean return"),
    ("success", "success_rate", "success"),
)
"""Names in an evaluation, in the Hub's metadata, and for people."""
_SETTINGS = (
    *("episodes", "mean_return", "success", "mean_length", "goals_completed", "goals_asked"),
    *("action", "seed", "task_args"),
)


@dataclass(frozen=True, kw_only=True)
class PolicyFacts:
    """All that the card of a policy tells."""

    description: PolicyDescription
    parameters: Mapping[str, int]
    """By part of the network."""
    training: Mapping[str, Any] | None
    """Configuration of the run."""
    datasets: Sequence[TrainedOn]
    evaluation: Mapping[str, Any] | None
    license: str
    year: str


def make_policy_card(repository: str, facts: PolicyFacts, existing: str) -> str:
    """The card of a policy.

    Args:
        repository: `OWNER/NAME`.
        facts: of the policy.
        existing: the card that is there; what people wrote in it is kept.
    """
    names = [task.name for task in facts.description.schema.tasks]
    datasets = [trained.name.repository for trained in facts.datasets if trained.name is not None]
    metadata: dict[str, Any] = {
        "license": facts.license,
        "library_name": "retold",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "retold", "in-context-rl", *dict.fromkeys(names)],
        "model-index": _model_index(repository, facts),
    }
    if datasets:
        metadata["datasets"] = list(dict.fromkeys(datasets))
    sections = _sections(repository, facts)
    return write_card(repository, existing, metadata, sections, kept=("pipeline_tag",))


def _model_index(repository: str, facts: PolicyFacts) -> list[dict[str, Any]] | None:
    """The scores as the Hub reads them; None without an evaluation."""
    if facts.evaluation is None:
        return None
    task = facts.description.schema.tasks[0].name
    metrics = [
        {"type": kind, "name": name, "value": facts.evaluation[key], "verified": False}
        for key, kind, name in _SCORES
        if isinstance(facts.evaluation.get(key), int | float)
        and math.isfinite(facts.evaluation[key])
    ]
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": task, "type": task},
        "metrics": metrics,
    }
    return [{"name": repository.partition("/")[2], "results": [result]}]


def _sections(repository: str, facts: PolicyFacts) -> Iterator[str]:
    description, schema = facts.description, facts.description.schema
    yield _introduction(facts)
    yield _loading(repository, schema.tasks[0])
    if facts.evaluation is not None:
        yield "## Evaluation\n\n" + _describe_evaluation(facts.evaluation)
    yield "## Task\n\n" + "\n\n".join(describe_task(task) for task in schema.tasks)
    yield "## Spaces\n\n" + describe_spaces(schema)
    goals = describe_goals(schema, Retelling())
    if goals:
        yield "## Goals\n\n" + goals
    yield "## Architecture\n\n" + _describe_architecture(facts)
    yield "## Training\n\n" + _describe_training(facts)
    yield f"## Licence\n\n`{plain(facts.license)}`"
    title = f"policy {description.policy_id} after {description.update:,} updates"
    yield "## Citation\n\n" + cite(repository, "", title, facts.year)


def _introduction(facts: PolicyFacts) -> str:
    description = facts.description
    names = ", ".join(f"`{plain(task.name)}`" for task in description.schema.tasks)
    encoder = {"transformer": "a causal Transformer", "gru": "a GRU"}.get(
        str(description.architecture.get("encoder", "transformer")), "a network without memory"
    )
    return (
        f"A policy for {names}: {encoder} over its own experience, with actor and critic heads, "
        f"{sum(facts.parameters.values()):,} parameters, after {description.update:,} updates on "
        f"stored episodes. It is policy `{description.policy_id}` in Retold's format: "
        f"`policy.json`, and weights as safetensors, which execute nothing when they are loaded."
    )


def _loading(repository: str, task: TaskDescription) -> str:
    instruction = ""
    if task.vocabulary is not None:
        goal = task.vocabulary.describe(0)
        is_plain = re.fullmatch(r"[\w .-]+", goal, re.ASCII) is not None
        instruction = f'["{goal}"]' if is_plain else "[0]"
    name = repository.partition("/")[2]
    return f"""## Loading

`retold pull-policy {repository} {name}` makes a copy, every file checked, which commands take as a
policy: `retold evaluate {name}`. In Python:

```python
import retold.policy
from huggingface_hub import snapshot_download

agent = retold.policy.load(snapshot_download("{repository}"))
agent.begin({instruction})
```

Then `agent.act(observation)` and `agent.see(reward)` take turns in any loop over a Gymnasium
environment."""


def _describe_evaluation(evaluation: Mapping[str, Any]) -> str:
    rows = [
        (name.replace("_", " "), value if isinstance(value, int | float) else _text(value))
        for name in _SETTINGS
        if (value := evaluation.get(name)) is not None
    ]
    parts = [
        "In worlds that no training can draw, as `retold evaluate` scores it:",
        table(("", "value"), rows),
    ]
    for name in ("attempts", "goals"):
        records = evaluation.get(name)
        if isinstance(records, list) and records and all(isinstance(r, dict) for r in records):
            parts.append(table_of_records(records[:_MOST_GOALS]))
            if len(records) > _MOST_GOALS:
                parts.append(f"{len(records) - _MOST_GOALS:,} more {name} are left out.")
    return "\n\n".join(parts)


def _describe_architecture(facts: PolicyFacts) -> str:
    parts = [(name.replace("_", " "), count) for name, count in facts.parameters.items()]
    total = ("all", sum(facts.parameters.values()))
    fields = sorted(facts.description.architecture.items())
    return (
        table(("part", "parameters"), [*parts, total])
        + "\n\n"
        + table(("setting", "value"), [(name, _text(value)) for name, value in fields])
    )


def _describe_training(facts: PolicyFacts) -> str:
    description = facts.description
    rows = [
        (
            "–" if trained.name is None else _link(trained),
            _release(trained),
            f"`{trained.snapshot.dataset_id}`",
            trained.snapshot.number,
        )
        for trained in facts.datasets
    ]
    parts = []
    if rows:
        parts.append(table(("on the Hub", "release", "dataset", "commit of its log"), rows))
    discounts = ", ".join(f"{discount:g}" for discount in description.discounts)
    parts.append(
        f"{description.update:,} updates; values and actors for the discounts {discounts}, of which "
        f"{description.acting_discount:g} acts."
    )
    if facts.training is not None:
        known = {*description.architecture, "discounts", "acting_discount"}
        settings = [(n, _text(v)) for n, v in sorted(facts.training.items()) if n not in known]
        parts.append(table(("setting", "value"), settings))
        parts.append("`config.json` holds all of them.")
    return "\n\n".join(parts)


def _link(trained: TrainedOn) -> str:
    assert trained.name is not None
    return f"`{trained.name.repository}`"


def _release(trained: TrainedOn) -> str | None:
    if trained.name is None or trained.name.revision is None:
        return None
    name = trained.name
    return f"`{name.revision[:12] if name.is_pinned else name.revision}`"  # type: ignore[index]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

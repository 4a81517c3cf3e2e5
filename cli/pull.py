"""`retold pull`: a dataset from the Hub, audited if asked."""

from dataclasses import dataclass
from typing import Any

from retold.cli.audit import AuditConfig, AuditResult, audit_dataset
from retold.cli.printing import describe_result, json_values
from retold.dataset.hub_pull import PullConfig, PullResult, pull_dataset


@dataclass(frozen=True, kw_only=True)
class CheckedPull:
    """What was pulled, and what the audit says of it."""

    pulled: PullResult
    audit: AuditResult | None

    def to_json(self) -> dict[str, Any]:
        """Both as plain values."""
        values: dict[str, Any] = json_values(self.pulled)
        return values if self.audit is None else {**values, "audit": json_values(self.audit)}

    def describe(self) -> str:
        """The pull, then the audit's findings and verdict."""
        text = describe_result(self.pulled)
        return text if self.audit is None else f"{text}\n\n{self.audit.describe()}"

    @property
    def exit_status(self) -> int:
        """1 if the audit found anything wrong, otherwise 0."""
        return 0 if self.audit is None else self.audit.exit_status


def pull(config: PullConfig) -> CheckedPull:
    """Pull a dataset, and audit it with `--verify`."""
    pulled = pull_dataset(config)
    audit = None
    if config.verify:
        audit = audit_dataset(AuditConfig(dataset=config.target))
    return CheckedPull(pulled=pulled, audit=audit)

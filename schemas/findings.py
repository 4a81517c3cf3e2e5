"""What an audit found wrong: the one record that every kind of audit returns."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is off. Audits report all of them and never write."""

    where: str
    """File, or dataset, shard and episode."""
    what: str
    """What is wrong, with the values."""
    todo: str
    """What to do about it."""
    severity: str = "error"
    """`error` fails the audit; `warning` does not (e.g. a shard that no commit names)."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.todo}"

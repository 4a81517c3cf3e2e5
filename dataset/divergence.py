"""Copies of one dataset that went different ways."""

from dataclasses import dataclass

from retold.dataset.log import CommitLog
from retold.dataset.paths import DatasetPath


@dataclass(frozen=True)
class Divergence:
    """Where two logs of one dataset part."""

    one: DatasetPath
    two: DatasetPath
    number: int
    """The first commit in which they differ."""

    @property
    def refusal(self) -> str:
        """Why the two cannot follow each other, and what to do."""
        return (
            f"{self.one} and {self.two}: they are copies of one dataset that went different ways: "
            f"their commits {self.number} differ. Join them into a new dataset with "
            f"`retold merge OUTPUT --data {self.one} --data {self.two}`."
        )


def find_divergence(one: CommitLog, two: CommitLog) -> Divergence | None:
    """The first commit that differs between two logs; None if one continues the other.

    A commit names the one before by hash, so that equal commits have equal pasts.
    """
    ends = [head.number for log in (one, two) if (head := log.head()) is not None]
    low, high = 0, min(ends) + 1 if len(ends) == 2 else 0
    common = high
    while low < high:
        middle = (low + high) // 2
        if one.snapshot(middle).sha256 == two.snapshot(middle).sha256:
            low = middle + 1
        else:
            high = middle
    return None if low == common else Divergence(one.path, two.path, low)

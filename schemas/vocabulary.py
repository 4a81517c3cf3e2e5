"""Goal vocabularies: a closed set of goals, each a short tuple of words and an integer id."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from retold.schemas.canonical import encode_json, sha256_hex
from retold.schemas.errors import FormatError

GoalKind = Literal["occurrence", "state"]


@dataclass(frozen=True)
class GoalFamily:
    """All goals whose words are one choice from each axis, in row-major order."""

    kind: GoalKind
    """`occurrence`: a count rises at a transition. `state`: something is true of an observation."""
    axes: tuple[tuple[str, ...], ...]
    """Words to choose from at each position, e.g. `(("travel",), ("0", "1"), ("0", "1"))`."""

    @property
    def size(self) -> int:
        """Number of goals in the family."""
        return math.prod(len(axis) for axis in self.axes)


@dataclass(frozen=True)
class GoalVocabulary:
    """A bijection between goal ids `0..size-1` and tuples of words; families follow each other."""

    families: tuple[GoalFamily, ...]

    @property
    def size(self) -> int:
        """Number of goals."""
        return sum(family.size for family in self.families)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word once, in order of first appearance."""
        return tuple(
            dict.fromkeys(w for family in self.families for axis in family.axes for w in axis)
        )

    @cached_property
    def goals(self) -> tuple[tuple[str, ...], ...]:
        """The words of every goal, by id."""
        return tuple(
            tuple(axis[i] for axis, i in zip(family.axes, index, strict=True))
            for family in self.families
            for index in np.ndindex(*(len(axis) for axis in family.axes))
        )

    @cached_property
    def is_state(self) -> NDArray[np.bool_]:
        """`[goals]`: True where the goal is a state, False where it is an occurrence."""
        return np.repeat(
            [family.kind == "state" for family in self.families],
            [family.size for family in self.families],
        )

    @cached_property
    def word_ids(self) -> NDArray[np.int64]:
        """`[goals, longest goal]`: 1 + index into `words`; 0 after a goal's last word."""
        number = {word: i + 1 for i, word in enumerate(self.words)}
        table = np.zeros((self.size, max(map(len, self.goals), default=0)), np.int64)
        for goal, words in enumerate(self.goals):
            table[goal, : len(words)] = [number[word] for word in words]
        return table

    @cached_property
    def _ids(self) -> dict[tuple[str, ...], int]:
        return {words: goal for goal, words in enumerate(self.goals)}

    def goal_id(self, words: tuple[str, ...]) -> int:
        """The id of a goal.

        Raises:
            FormatError: the vocabulary has no such goal.
        """
        if words not in self._ids:
            raise FormatError(
                f"Goal {' '.join(words)!r} is not in the vocabulary of {self.size} goals. "
                f"Its words are: {', '.join(self.words)}."
            )
        return self._ids[words]

    def describe(self, goal: int) -> str:
        """A goal for people, e.g. `collect sapling`."""
        return " ".join(self.goals[goal])

    def to_json(self) -> dict[str, Any]:
        """The vocabulary as plain JSON values."""
        return {"families": [{"kind": f.kind, "axes": f.axes} for f in self.families]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "GoalVocabulary":
        """The inverse of `to_json`."""
        return cls(
            tuple(
                GoalFamily(f["kind"], tuple(tuple(axis) for axis in f["axes"]))
                for f in content["families"]
            )
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON: goal ids mean nothing outside their vocabulary."""
        return sha256_hex(encode_json(self.to_json()))

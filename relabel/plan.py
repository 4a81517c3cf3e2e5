"""What a strategy is asked for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retold.relabel.draws import Draws

ATTEMPTS = 9
"""A variant that is not new is drawn again up to 8 times."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which episodes are to be told anew, and how long; one instruction a plan."""

    episode: NDArray[np.int64]
    """`[plans]`: index into the batch."""
    goals: NDArray[np.int64]
    """`[plans]`: wanted length of each new instruction; with too few onsets it is shorter."""
    draws: Draws
    """`[plans]`: a stream for each plan."""

    def take(self, rows: NDArray[np.int64]) -> "Plan":
        """Some of the plans; what they draw does not depend on the others."""
        return Plan(episode=self.episode[rows], goals=self.goals[rows], draws=self.draws.take(rows))

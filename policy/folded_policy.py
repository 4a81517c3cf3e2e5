"""A policy as it acts: a step of several episodes at once, by as few operations as can be."""

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retold.policy.distributions import acting_numbers
from retold.policy.network import Policy
from retold.policy.trajectory_encoder import TrajectoryEncoder


class FoldedPolicy:
    """The weights that acting needs, multiplied out where two follow each other, and the memory.

    Of the heads that is the acting discount's actor.
    """

    def __init__(self, policy: Policy, slots: int) -> None:
        """Take over a policy's weights of now, with nothing remembered in any slot."""
        self._codec = policy.codec
        self._encode = policy.timestep_encoder.fold()
        self._steps = cast(TrajectoryEncoder, policy.trajectory_encoder).start(slots)
        self._actor = policy.fold_actor()

    def clear(self, slot: int) -> None:
        """Forget an episode."""
        self._steps.clear(slot)

    def advance(
        self, known: Tensor, step: NDArray[np.int64], slots: Tensor | None
    ) -> NDArray[np.float64]:
        """`[batch, outputs]`: what `draw_action` needs.

        Args:
            known: `[batch, features]`, of `StepRows`.
            step: `[batch]`: number in the trajectory.
            slots: `[batch]`, int64, all different; None: every one, in order.
        """
        features = self._steps.advance(self._encode(known), step, slots)
        numbers = acting_numbers(self._codec, self._actor(features))
        return np.asarray(numbers.to(torch.float64).numpy())

"""A running mean of a policy's weights: steadier to act with than the weights of any one update."""

import copy

import torch

from retold.policy.linear import scaled_layers
from retold.policy.network import Policy

_EARLY = 10


class AveragedPolicy:
    """Follows a policy that learns (Polyak and Juditsky 1992, doi 10.1137/0330046).

    At first the mean is over about the last tenth of the updates, so that random weights are soon
    forgotten; then each update counts by the share that is asked for.
    """

    def __init__(self, policy: Policy, rate: float) -> None:
        """Begin with a policy's weights as they are.

        Args:
            policy: that learns.
            rate: least share by which the mean follows, in (0, 1].
        """
        self._rate = rate
        self.policy = copy.deepcopy(policy).requires_grad_(False)
        self._slow = [p.data for p in self.policy.parameters()]
        self._fast = [p.data for p in policy.parameters()]
        # Norms are of the averaged weights, and so have an estimate of their own.
        own = {id(b) for layer in scaled_layers(self.policy) for b in layer.buffers()}
        pairs = zip(self.policy.buffers(), policy.buffers(), strict=True)
        self._copied = [(to, of) for to, of in pairs if id(to) not in own]

    @torch.no_grad()
    def follow(self, update: int) -> None:
        """Take in the weights after an update, counted from 1, and the statistics as they are."""
        rate = max(self._rate, (_EARLY - 1) / (_EARLY + update))
        torch._foreach_lerp_(self._slow, self._fast, rate)
        for to, of in self._copied:
            to.copy_(of)
        self.policy.iterate_powers()

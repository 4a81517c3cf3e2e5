"""The head of objectives that learn actions alone: an actor, and no values."""

from torch import Tensor, nn

from retold.policy.actions import ActionCodec
from retold.policy.ensemble import make_actor


class ActorHead(nn.Module):
    """One actor of any kind of action."""

    def __init__(self, codec: ActionCodec, width: int, hidden: int, *, layers: int) -> None:
        super().__init__()
        self.actor = make_actor(width, hidden, layers, codec.outputs)

    def distribution(self, x: Tensor) -> Tensor:
        """Logits, or means and log-spreads, `[..., 1, outputs]`, float32.

        The axis of one stands where heads with values have one actor a discount.
        """
        outputs: Tensor = self.actor(x)
        return outputs.float()[..., None, :]

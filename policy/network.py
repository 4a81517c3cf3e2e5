"""The policy: one shared trunk over the trajectory, actor and critic heads on every timestep."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retold.policy.actions import ActionCodec, make_action_codec
from retold.policy.actor_head import ActorHead
from retold.policy.architecture import ArchitectureConfig
from retold.policy.distributions import acting_numbers
from retold.policy.folding import FoldedStack
from retold.policy.heads import Heads
from retold.policy.inputs import PolicyInputs
from retold.policy.linear import scaled_layers
from retold.policy.timestep_encoder import TimestepEncoder
from retold.policy.trajectory_encoder import make_trajectory_encoder
from retold.policy.vector_heads import VectorHeads
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import UsageError


class Policy(nn.Module):
    """Everything that acts and learns, apart from target copies and the optimiser."""

    heads: Heads | VectorHeads | ActorHead
    target_return: Tensor

    def __init__(
        self,
        schema: DatasetSchema,
        architecture: ArchitectureConfig,
        discounts: Sequence[float] = (),
        acting_discount: float | None = None,
    ) -> None:
        """Make one with random weights.

        Args:
            schema: spaces, tasks and goals.
            architecture: sizes, and what is learned.
            discounts: that values are learned for; none where there are no values.
            acting_discount: whose actor acts; None where there are no values.
        """
        super().__init__()
        assert architecture.has_critics == bool(discounts), (architecture.objective, discounts)
        self.schema = schema
        self.architecture = architecture
        self.discounts = tuple(discounts)
        self.acting_discount = acting_discount
        self.most_goals = max(task.max_instruction_length for task in schema.tasks)
        self.codec = make_action_codec(schema)
        self.timestep_encoder = TimestepEncoder(schema, architecture)
        self.trajectory_encoder = make_trajectory_encoder(architecture)
        self.heads = _make_heads(self.codec, architecture, len(self.discounts))
        self._scaled_layers = scaled_layers(self)
        if architecture.sees_return:
            # What acting asks for unless told otherwise; training knows what its data came to.
            self.register_buffer("target_return", torch.zeros((), dtype=torch.float64))

    def encode(self, inputs: PolicyInputs) -> Tensor:
        """`[batch, time, features]` of whole windows, or `[rows, features]` of packed ones."""
        features = self.timestep_encoder(inputs)
        if inputs.sequence is None:
            batch, time, width = features.shape
            encoded: Tensor = self.trajectory_encoder(
                features.flatten(0, 1), inputs.place.flatten(), (time,) * batch
            )
            return encoded.view(batch, time, width)
        packed: Tensor = self.trajectory_encoder(features, inputs.place, inputs.lengths)
        return packed

    def acting_numbers(self, features: Tensor) -> Tensor:
        """`[batch, outputs]` of the actor that acts: what `draw_action` needs."""
        if isinstance(self.heads, Heads):
            return self.heads.log_policy(features)[..., self._acting_head, :].exp()
        outputs = self.heads.distribution(features)[..., self._acting_head, :]
        return acting_numbers(self.codec, outputs)

    @torch.no_grad()
    def fold_actor(self) -> FoldedStack:
        """The actor that acts alone, for few rows at a time; its outputs are logits and the like."""
        *hidden, last = (x for x in self.heads.actor if isinstance(x, nn.Linear))
        size = self.codec.outputs
        rows = slice(self._acting_head * size, (self._acting_head + 1) * size)
        return FoldedStack(
            [*((x.weight, x.bias) for x in hidden), (last.weight[rows], last.bias[rows])]
        )

    @property
    def _acting_head(self) -> int:
        return 0 if self.acting_discount is None else self.discounts.index(self.acting_discount)

    def iterate_powers(self) -> None:
        """One step of power iteration in every layer of learned spectral norm."""
        for layer in self._scaled_layers:
            layer.iterate_power()


def _make_heads(
    codec: ActionCodec, config: ArchitectureConfig, discounts: int
) -> Heads | VectorHeads | ActorHead:
    if not config.has_critics:
        return ActorHead(codec, config.model_width, config.head_width, layers=config.head_layers)
    if codec.kind == "choice":
        return Heads(
            config.model_width,
            config.head_width,
            codec.size,
            discounts,
            config.critics,
            layers=config.head_layers,
            bins=config.value_bins if config.critic == "two-hot" else 1,
        )
    if config.critic == "two-hot":
        raise UsageError(
            "--critic two-hot takes one Discrete action, but the task has several choices or "
            "amounts. Use --critic regression."
        )
    return VectorHeads(
        codec,
        config.model_width,
        config.head_width,
        discounts,
        config.critics,
        layers=config.head_layers,
    )

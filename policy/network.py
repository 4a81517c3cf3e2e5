"""The policy: one shared trunk over the trajectory, actor and critic heads on every timestep."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retold.policy.architecture import ArchitectureConfig
from retold.policy.heads import Heads
from retold.policy.inputs import PolicyInputs
from retold.policy.timestep_encoder import TimestepEncoder, action_count
from retold.policy.trajectory_encoder import TrajectoryCache, TrajectoryEncoder
from retold.schemas.dataset_schema import DatasetSchema


class Policy(nn.Module):
    """Everything that acts and learns, apart from target copies and the optimiser."""

    def __init__(
        self,
        schema: DatasetSchema,
        architecture: ArchitectureConfig,
        discounts: Sequence[float],
        acting_discount: float,
    ) -> None:
        super().__init__()
        self.schema = schema
        self.architecture = architecture
        self.discounts = tuple(discounts)
        self.acting_discount = acting_discount
        self.most_goals = max(task.max_instruction_length for task in schema.tasks)
        self.timestep_encoder = TimestepEncoder(schema, architecture.model_width)
        self.trajectory_encoder = TrajectoryEncoder(architecture)
        self.heads = Heads(
            architecture.model_width,
            architecture.head_width,
            action_count(schema),
            len(self.discounts),
            architecture.critics,
        )

    def encode(self, inputs: PolicyInputs) -> Tensor:
        """`[batch, time, features]` of whole windows."""
        features = self.timestep_encoder(inputs)
        encoded: Tensor = self.trajectory_encoder(features, inputs.step)
        return encoded

    @torch.no_grad()
    def advance(self, inputs: PolicyInputs, cache: TrajectoryCache, slots: Tensor) -> Tensor:
        """`[batch, features]` of one step (`time` = 1) of the episodes in `slots`."""
        features = self.timestep_encoder(inputs)[:, 0]
        return self.trajectory_encoder.advance(features, inputs.step[:, 0], cache, slots)

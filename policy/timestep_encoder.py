"""From what is seen at a step to the features of that step."""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.actions import make_action_codec
from retold.policy.architecture import ArchitectureConfig
from retold.policy.folding import FoldedStack
from retold.policy.input_norm import LARGEST, InputNorm, moments_of
from retold.policy.inputs import PolicyInputs
from retold.policy.instruction_encoder import InstructionEncoder
from retold.policy.leaf_encoders import VectorEncoder, make_leaf_encoder
from retold.schemas.dataset_schema import DatasetSchema


@dataclass(frozen=True, kw_only=True)
class StepColumns:
    """Where what is known of a step stands among the features that are mixed."""

    observation: dict[str, slice]
    """By leaf path."""
    null: int
    """Whether there was no action before."""
    action: slice
    reward: int
    return_to_go: int | None
    reset: int
    step: int
    instruction: slice
    """Empty where there never is a goal."""

    @property
    def size(self) -> int:
        """Of all together; the instruction stands last."""
        return int(self.instruction.stop)


class TimestepEncoder(nn.Module):
    """Observation, previous action, reward, reset, step and instruction as one vector."""

    def __init__(self, schema: DatasetSchema, config: ArchitectureConfig) -> None:
        super().__init__()
        self._codec = make_action_codec(schema)
        self.horizon = max(task.horizon for task in schema.tasks)
        self.observation = nn.ModuleDict(
            {
                _name_of(leaf.path): make_leaf_encoder(leaf, config.image_encoder)
                for leaf in schema.observation_leaves
            }
        )
        encoders = self.observation.values()
        amounts = [_features(e) for e in encoders if isinstance(e, VectorEncoder)]
        # The reward is an amount too, and so is the return to go: they are the last.
        self._sees_return = config.sees_return
        self._facts = 1 + config.sees_return
        self._amounts = (*amounts, *[1] * self._facts)
        self.norm = InputNorm(sum(self._amounts)) if config.input_normalisation else None
        width = config.model_width
        self.instruction = InstructionEncoder(schema, width, visibility=config.visibility)
        # Whether there was an action, and which; then reward (and return to go), reset and step.
        facts = (1 + self._codec.size) + self._facts + 2 + width
        sizes = [sum(_features(encoder) for encoder in encoders) + facts, *config.timestep_units]
        self.columns = self._make_columns(schema, 0 if self.instruction.is_empty else width)
        self.mix = nn.Sequential(
            *itertools.chain.from_iterable(
                (nn.Linear(inputs, outputs), nn.LeakyReLU(inplace=True))
                for inputs, outputs in itertools.pairwise(sizes)
            )
        )
        self.project = nn.Linear(sizes[-1], width)

    def forward(self, inputs: PolicyInputs) -> Tensor:
        """`[batch, time, features]`, or `[rows, features]` of packed inputs."""
        features: Tensor = self.project(self._mix(self.known(inputs)))
        return features

    def known(self, inputs: PolicyInputs) -> Tensor:
        """`[..., known]`: all that is seen side by side, as `columns` has it."""
        amounts = self.amounts(inputs)
        if self.norm is not None:
            amounts = self.norm(amounts)
        parts = torch.split(amounts, list(self._amounts), -1)
        rest = iter(parts)
        seen = [
            next(rest) if isinstance(encoder, VectorEncoder) else encoder(rows)
            for encoder, rows in self._leaves(inputs)
        ]
        has_previous = inputs.has_previous[..., None]
        (stored,) = inputs.previous_action.values()
        encoded = self._codec.encode(stored)
        action = self._codec.vector(torch.where(has_previous, encoded, 0))
        facts = [
            (~has_previous).float(),
            action * has_previous,
            *parts[-self._facts :],
            inputs.previous_reset[..., None].float(),
            (inputs.step.float() / self.horizon)[..., None],
        ]
        if not self.instruction.is_empty:
            facts.append(self.instruction(inputs.instruction, inputs.progress, inputs.sequence))
        return torch.cat([*seen, *facts], -1)

    def _mix(self, known: Tensor) -> Tensor:
        """The hidden layers; weights of the features that are left out at the end do nothing."""
        first, *others = self.mix
        assert isinstance(first, nn.Linear)
        known = F.linear(known, first.weight[:, : known.shape[-1]], first.bias)
        for layer in others:
            known = layer(known)
        return known

    @torch.no_grad()
    def fold(self) -> FoldedStack:
        """From what is known to features, for few rows at a time."""
        (first, *others), last = (x for x in self.mix if isinstance(x, nn.Linear)), self.project
        known = first.weight[:, : self.columns.size]
        return FoldedStack(
            [(known, first.bias), *((layer.weight, layer.bias) for layer in (*others, last))]
        )

    @torch.no_grad()
    def units(self) -> tuple[Tensor, Tensor, Tensor]:
        """`[known]` each: known is (raw - center) * factor, cut off at a limit on both sides."""
        center, factor = torch.zeros(self.columns.size), torch.ones(self.columns.size)
        limit = torch.full((self.columns.size,), float("inf"))
        for path, columns in self.columns.observation.items():
            encoder = self.leaf_encoder(path)
            if isinstance(encoder, VectorEncoder):
                center[columns], factor[columns] = encoder.center, encoder.scale
        if self.norm is not None:
            amounts = self._amount_columns()
            center[amounts] += self.norm.mean / factor[amounts]
            factor[amounts] /= self.norm.spread
            limit[amounts] = LARGEST
        return center, factor, limit

    def amounts(self, inputs: PolicyInputs) -> Tensor:
        """`[..., features]`: what is normalised: observed amounts, previous reward, return to go."""
        seen = [e(rows) for e, rows in self._leaves(inputs) if isinstance(e, VectorEncoder)]
        facts = [inputs.previous_reward]
        if self._sees_return:
            assert inputs.return_to_go is not None
            facts.append(inputs.return_to_go)
        return torch.cat([*seen, *(fact[..., None] for fact in facts)], -1)

    def moments(self, inputs: PolicyInputs) -> Tensor:
        """What `take_moments` follows, of packed inputs; sums over several are valid too."""
        return moments_of(self.amounts(inputs))

    def take_moments(self, moments: Tensor) -> None:
        """Let the input normalisation, if there is one, follow an update's rows."""
        if self.norm is not None:
            self.norm.take(moments)

    def leaf_encoder(self, path: str) -> nn.Module:
        """Of the observation's leaf."""
        return self.observation[_name_of(path)]

    def _leaves(self, inputs: PolicyInputs) -> list[tuple[nn.Module, Tensor]]:
        return [(self.leaf_encoder(path), rows) for path, rows in inputs.observation.items()]

    def _make_columns(self, schema: DatasetSchema, told: int) -> StepColumns:
        observation, null = {}, 0
        for leaf in schema.observation_leaves:
            end = null + _features(self.leaf_encoder(leaf.path))
            observation[leaf.path], null = slice(null, end), end
        reward = null + 1 + self._codec.size
        reset = reward + self._facts
        return StepColumns(
            observation=observation,
            null=null,
            action=slice(null + 1, reward),
            reward=reward,
            return_to_go=reward + 1 if self._sees_return else None,
            reset=reset,
            step=reset + 1,
            instruction=slice(reset + 2, reset + 2 + told),
        )

    def _amount_columns(self) -> Tensor:
        """Of what is normalised, in the order of `amounts`."""
        every = torch.arange(self.columns.size)
        spans = [
            span
            for path, span in self.columns.observation.items()
            if isinstance(self.leaf_encoder(path), VectorEncoder)
        ]
        return torch.cat(
            [every[span] for span in (*spans, slice(self.columns.reward, self.columns.reset))]
        )


def _features(module: Any) -> int:
    features = module.features
    assert isinstance(features, int)
    return features


def _name_of(path: str) -> str:
    return path.replace("/", "__").replace(".", "_")

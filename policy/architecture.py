"""The shape of the network: everything that `policy.json` needs to rebuild it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from retold.schemas.errors import UsageError

Objective = Literal["actor-critic", "bc", "dt", "gcsl"]
"""What a policy learns, which decides the heads and inputs that it has."""


@dataclass(frozen=True, kw_only=True)
class ArchitectureConfig:
    """The shared trunk over a trajectory, and its heads."""

    objective: Objective = "actor-critic"
    """What is learned: values and the actions that raise them, or actions alone: all of the data
    (bc), those that followed a return to go, which acting then asks for (dt), or those that led to
    the goals of the instruction (gcsl)."""
    context: Literal["episode", "history"] = "episode"
    """What is remembered: one episode, or the episodes of one task in the order of the training that
    made them; acting then goes on from one episode to the next."""
    encoder: Literal["transformer", "gru", "memoryless"] = "transformer"
    """What remembers: a causal Transformer, a GRU, or nothing."""
    model_width: int = 64
    """Features of a timestep."""
    layers: int = 2
    """Blocks of the trajectory encoder."""
    heads: int = 4
    """Attention heads; they divide the model width."""
    feedforward_width: int | None = None
    """Hidden units of a block's feed-forward part; none means four times the model width."""
    attention_window: int = 512
    """Steps that a step sees, itself included."""
    normformer: bool = True
    """Two more norms in a block: after attention and within the feed-forward part."""
    head_scaling: bool = True
    """A learned factor for every attention head."""
    sigma_reparam: bool = True
    """Linear layers of a block with a learned spectral norm, which keeps attention from collapsing."""
    activation: Literal["leaky-relu", "relu", "gelu"] = "leaky-relu"
    """Of the blocks' feed-forward parts."""
    positions: Literal["rotary", "none"] = "rotary"
    """How attention knows distances; a step's number in its episode is an input in any case."""
    timestep_widths: tuple[int, ...] = ()
    """Hidden units of the timestep encoder's layers; none means one of twice the model width."""
    image_encoder: Literal["cnn", "impala"] = "cnn"
    """Of image observations: three convolutions, or IMPALA's residual network."""
    input_normalisation: bool = True
    """Scale observed amounts and rewards by their running mean and spread."""
    visibility: Literal["full", "current"] = "full"
    """Goals of the instruction that are seen: all that are left, or the current one alone."""
    head_width: int = 128
    """Hidden units of a layer of actor and critic heads."""
    head_layers: int = 1
    """Hidden layers of actor and critic heads."""
    critics: int = 4
    """Critics in the ensemble; two of them, drawn for each update and discount, make the target."""
    critic: Literal["regression", "two-hot"] = "regression"
    """What critics learn: normalised values, or which of many bins the value lies in."""
    value_bins: int = 65
    """Bins of a two-hot critic."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(ArchitectureConfig)):
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(n, int) and not isinstance(n, bool) and n < 1 for n in numbers):
                raise UsageError(f"{_flag(name)} is {value}, but must be at least 1.")
        if self.encoder == "transformer" and self.model_width % (2 * self.heads):
            raise UsageError(
                f"--model-width is {self.model_width}, which {self.heads} heads of even width "
                f"do not divide. Give a multiple of {2 * self.heads}."
            )
        if self.value_bins < 3:
            raise UsageError(f"--value-bins is {self.value_bins}, but must be at least 3.")

    @property
    def has_critics(self) -> bool:
        """Whether values are learned, for each discount."""
        return self.objective == "actor-critic"

    @property
    def sees_return(self) -> bool:
        """Whether the return to go is an input."""
        return self.objective == "dt"

    @property
    def feedforward_units(self) -> int:
        """Hidden units of a block's feed-forward part."""
        return self.feedforward_width or 4 * self.model_width

    @property
    def timestep_units(self) -> tuple[int, ...]:
        """Hidden units of the timestep encoder's layers."""
        return self.timestep_widths or (2 * self.model_width,)

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {**asdict(self), "timestep_widths": list(self.timestep_widths)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ArchitectureConfig":
        """The inverse of `to_json`; fields that a first snapshot lacks are as they were then."""
        known = {field.name for field in fields(cls)}
        values = {**_FIRST_VERSION, **content}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown architecture fields {unknown}")
        return cls(**{**values, "timestep_widths": tuple(values["timestep_widths"])})


_FIRST_VERSION: dict[str, Any] = {
    "normformer": False,
    "head_scaling": False,
    "sigma_reparam": False,
    "input_normalisation": False,
    "timestep_widths": (),
}
"""What snapshots of policy_version 1 had no field for, where that differs from today's default."""


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")

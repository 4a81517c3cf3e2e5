"""The shape of the network: everything that `policy.json` needs to rebuild it."""

from dataclasses import asdict, dataclass
from typing import Any

from retold.schemas.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ArchitectureConfig:
    """Sizes of the shared Transformer and its heads."""

    model_width: int = 64
    """Features of a timestep."""
    layers: int = 2
    """Transformer blocks."""
    heads: int = 4
    """Attention heads; they divide the model width."""
    attention_window: int = 512
    """Steps that a step sees, itself included."""
    head_width: int = 128
    """Hidden units of actor and critic heads."""
    critics: int = 4
    """Critics in the ensemble."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} is {value}, but must be at least 1.")
        if self.model_width % (2 * self.heads):
            raise UsageError(
                f"--model-width is {self.model_width}, which {self.heads} heads of even width "
                f"do not divide. Give a multiple of {2 * self.heads}."
            )

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)

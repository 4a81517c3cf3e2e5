"""What `retold loop` is asked."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What `retold loop` is asked; a flag beats the file's section `[loop]`."""

    config: Path
    """TOML file with the sections task, collect, relabel, train, evaluate and loop."""
    run: Path | None = None
    """Folder of the run: its datasets `raw` and `retold`, and its policies."""
    iterations: int | None = None
    """Iterations in all, those already finished included; none means what the file says, or 2."""
    seed: int | None = None
    """Seed of every stage; none means what the file says, or 0."""
    ahead: int | None = None
    """Iterations that collecting may run ahead of training; 0, or none where the file does not say,
    runs one stage after the other, more runs them side by side."""
    resume: bool = False
    """Go on with the run where it stopped."""

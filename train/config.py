"""What `retold train` is asked."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from retold.dataset.paths import DatasetPath
from retold.dataset.sources import SourceFlag
from retold.policy.architecture import ArchitectureConfig
from retold.schemas.errors import UsageError

Filter = Literal["binary", "exponential", "soft", "none"]
"""Which actions are imitated, by their advantage."""
DeviceChoice = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "float32", "bfloat16"]
TrackerName = Literal["wandb", "trackio"]
_NAIVE: dict[str, Any] = {
    "normformer": False,
    "head_scaling": False,
    "sigma_reparam": False,
    "activation": "relu",
    "discounts": (0.99,),
    "acting_discount": 0.99,
    "critics": 2,
    "popart": False,
    "cloning_weight": 0.0,
    "actor_moves_critics": True,
}
"""Actor-critic on a plain Transformer, as one would first write it; it is there to be compared with."""
_MAY_CHANGE = frozenset(
    {
        *("run", "updates", "resume", "follow", "publish_every", "checkpoint_every", "threads"),
        *("source", "cache", "keep_checkpoints", "dry_run", "device"),
        *("track", "track_project"),
    }
)
"""Fields that a resumed run may set anew: none of them changes what an update does."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ArchitectureConfig, SourceFlag):
    """What `retold train` is asked: the policy's architecture among it."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"naive": _NAIVE}
    """Values that `--preset NAME` begins with, by name."""

    run: Path
    """Folder of the run: checkpoints, metrics and published policies."""
    data: tuple[DatasetPath, ...] = ()
    """Dataset to learn from; may be given several times. It is never changed."""
    weight: tuple[float, ...] = ()
    """Share of windows from the dataset before it, in any scale; all equal if none is given."""
    cache: Path | None = None
    """Folder that `retold cache` filled: what it holds is mapped instead of decoded."""
    updates: int = 1000
    """Updates of the run in all, those already done included."""
    follow: bool = False
    """Look for newly committed episodes before every publication, and wait for the first ones."""
    publish_every: int = 200
    """Updates between two published policies; the last one is always published."""
    checkpoint_every: int = 200
    """Updates between two checkpoints; the last one is always kept."""
    keep_checkpoints: int = 2
    """Newest checkpoints to keep; in a loop that evaluates, the best one stays besides."""
    resume: bool = False
    """Go on from the newest checkpoint."""
    track: TrackerName | None = None
    """Send the metrics to a tracker of experiments besides; each has an extra of its name."""
    track_project: str = "retold"
    """The tracker's project."""
    dry_run: bool = False
    """Say what would be learned from, and what an update would take; nothing is written."""
    seed: int = 0
    """Seed of weights and draws."""
    context_length: int = 512
    """Transitions of a window: longer episodes are cut."""
    batch_size: int = 24
    """Windows of an update, shared by all processes of `torchrun`."""
    tokens_per_update: int | None = None
    """Transitions of an update, reached by adding up batches of --batch-size; none means one batch."""
    max_policy_lag: int | None = None
    """Updates between the policy that made an episode and its use, at most; none means any number."""
    old_windows: Literal["skip", "down-weight"] = "skip"
    """Leave windows of a higher lag out, or use them the less often the higher it is."""
    burn_in: int | None = None
    """Steps at the start of a cut window that give context but no loss; none means half of it."""
    discounts: tuple[float, ...] = (0.9, 0.97, 0.999)
    """Discounts that values and actors are learned for."""
    acting_discount: float = 0.999
    """The discount whose actor acts."""
    learning_rate: float = 5e-4
    """Step size of AdamW after warm-up."""
    warmup_updates: int = 200
    """Updates over which the step size rises from 0."""
    decay_after: int | None = None
    """Updates after which the step size falls with the inverse root of their number; none means never."""
    average_rate: float | None = None
    """Publish a running mean of the weights that follows them by this share an update, by more at first;
    none publishes the weights as they are."""
    weight_decay: float = 1e-3
    """AdamW's."""
    gradient_clip: float = 1.0
    """Largest norm of the gradient."""
    reward_scale: float = 10.0
    """Multiplies rewards in the targets; stored rewards stay raw."""
    target_rate: float = 0.005
    """Share by which target heads follow at each update."""
    critic_weight: float = 10.0
    """Weight of the critics' loss."""
    online_weight: float = 1.0
    """Weight of the policy gradient through the critics."""
    cloning_weight: float = 0.1
    """Weight of the filtered behaviour cloning."""
    actor_moves_critics: bool = False
    """Let the policy gradient change critics and what they see of the trunk: a fault to compare with."""
    popart_rate: float = 3e-3
    """Share by which PopArt's statistics follow at each update."""
    popart: bool = True
    """Whether critics learn values in units of their targets' running spread."""
    return_steps: int = 1
    """Most steps of a return before it bootstraps."""
    cloning_filter: Filter = "binary"
    """Actions to imitate: better ones, all weighed by exp or sigmoid of the advantage, or all alike."""
    cloning_temperature: float = 1.0
    """Advantage, in units of the critics' spread, that the exponential and the soft filter divide by."""
    threads: int = 1
    """CPU threads of an update."""
    device: DeviceChoice = "auto"
    """Where updates run; auto takes a GPU if torch finds one."""
    precision: Precision = "auto"
    """Numbers of the products; auto takes bfloat16 on a GPU that has it, and float32 elsewhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            *("updates", "publish_every", "checkpoint_every", "context_length", "batch_size"),
            *("warmup_updates", "threads", "return_steps", "keep_checkpoints"),
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"{_flag(name)} is {getattr(self, name)}, but must be at least 1.")
        if self.tokens_per_update is not None and self.tokens_per_update < 1:
            raise UsageError(
                f"--tokens-per-update is {self.tokens_per_update}, but must be at least 1."
            )
        if self.decay_after is not None and self.decay_after < self.warmup_updates:
            raise UsageError(
                f"--decay-after is {self.decay_after}, but must be at least --warmup-updates, "
                f"{self.warmup_updates}."
            )
        if self.average_rate is not None and not 0 < self.average_rate <= 1:
            raise UsageError(
                f"--average-rate is {self.average_rate}, but lies above 0 and is at most 1."
            )
        if self.max_policy_lag is not None and self.max_policy_lag < 0:
            raise UsageError(f"--max-policy-lag is {self.max_policy_lag}, but must be at least 0.")
        if self.context == "history" and self.max_policy_lag is not None:
            raise UsageError(
                "--context history is about how policies became better, and --max-policy-lag leaves "
                "the older ones out. Give one of the two."
            )
        if self.context == "history" and self.context_length < 2:
            raise UsageError(
                f"--context-length is {self.context_length}, but a history has at least 2."
            )
        if not self.data:
            raise UsageError("There is nothing to learn from. Give --data DATASET.")
        if self.weight and len(self.weight) != len(self.data):
            raise UsageError(
                f"There are {len(self.weight)} weights for {len(self.data)} datasets. Give one "
                f"--weight after each --data, or none."
            )
        if not self.discounts or any(not 0 <= d < 1 for d in self.discounts):
            raise UsageError(f"--discounts is {self.discounts}, but each lies in [0, 1).")
        if self.acting_discount not in self.discounts:
            raise UsageError(
                f"--acting-discount is {self.acting_discount}, which is not among --discounts "
                f"{self.discounts}."
            )
        if self.burn_in is not None and not 0 <= self.burn_in < self.context_length:
            raise UsageError(
                f"--burn-in is {self.burn_in}, but lies between 0 and --context-length - 1."
            )
        if self.cloning_temperature <= 0:
            raise UsageError(
                f"--cloning-temperature is {self.cloning_temperature}, but must be above 0."
            )
        if self.critics < 2:
            raise UsageError(f"--critics is {self.critics}, but must be at least 2.")

    @property
    def architecture(self) -> ArchitectureConfig:
        """The network's part of it."""
        return ArchitectureConfig(
            **{field.name: getattr(self, field.name) for field in fields(ArchitectureConfig)}
        )

    @property
    def burn_in_steps(self) -> int:
        """Steps without loss at the start of a cut window."""
        if self.burn_in is not None:
            return self.burn_in
        return min(self.attention_window, self.context_length // 2)

    def to_json(self) -> dict[str, Any]:
        """The resolved fields as plain JSON values."""
        content = asdict(self)
        content["run"] = str(self.run)
        content["data"] = [str(path) for path in self.data]
        content["cache"] = None if self.cache is None else str(self.cache)
        return {n: list(v) if isinstance(v, tuple) else v for n, v in content.items()}


def changed_fields(stored: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Fields that differ from a run's own and may not; datasets may be added to a run.

    A field that a run of before has no value for is as it is by default.
    """
    wanted = config.to_json()
    fixed = [f for f in fields(config) if f.name not in _MAY_CHANGE | {"data", "weight"}]
    return sorted(f.name for f in fixed if stored.get(f.name, f.default) != wanted[f.name])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")

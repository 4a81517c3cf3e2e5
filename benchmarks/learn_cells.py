"""What `learn.py` learns: tasks, budgets and settings. All seeds of a task have the same."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Measure = Literal["success", "mean_return", "goals_completed"]
ENCODERS = ("transformer", "gru", "memoryless")
SEEDS = (0, 1, 2)
_STEADY = {"learning_rate": 4e-4, "decay_after": 1_000, "average_rate": 0.005}
"""For long learning, whose returns at the default rate go up and down."""
_SOON = {"acting_discount": 0.97}
"""For what pays within tens of steps."""


@dataclass(frozen=True, kw_only=True)
class LearningTask:
    """One task, and how much may be spent on it."""

    name: str
    task: str
    """As `retold tasks` lists it."""
    task_args: Mapping[str, Any] = field(default_factory=dict)
    measure: Measure = "mean_return"
    random: float
    """The measure of random actions, over 1,000 episodes."""
    reference: float
    """The measure of a player who knows what is hidden, or remembers all; see docs/tasks.md."""
    bar: float
    """What has to be reached."""
    stopping_bar: float | None = None
    """What ends learning once three evaluations in a row reached it, where the bar is too close to
    their noise."""
    attempt_gain: float | None = None
    """What the last attempt's return over the first's has to reach besides."""
    most_steps: int
    """Environment steps after which learning stops, solved or not."""
    episodes: int = 24
    """Collected in a round."""
    updates: int = 25
    """Trained in a round."""
    rounds_between_evaluations: int = 4
    action: Literal["greedy", "sample"] = "sample"
    """How evaluation acts."""
    stopping_episodes: int = 50
    """Of an evaluation that decides whether to stop; more where episodes differ much."""
    epsilon: float | None = 0.05
    """Of `retold collect`; None: the task's own schedule."""
    is_retold: bool = False
    """Whether variants that `retold relabel` makes are learned from too."""
    encoders: tuple[str, ...] = ("transformer",)
    train: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `retold train` that are not its defaults."""

    def has_gained(self, gain: float | None) -> bool:
        """Whether the last attempt's return over the first's is enough."""
        return self.attempt_gain is None or (gain or 0.0) >= self.attempt_gain


def halfway(random: float, reference: float) -> float:
    """The middle of the way from random actions to the reference."""
    return (random + reference) / 2


def _tmaze(corridor: int, **given: Any) -> LearningTask:
    return LearningTask(
        **{
            "name": f"tmaze-{corridor}",
            "task": "tmaze",
            "task_args": {"corridor": corridor},
            "measure": "success",
            "random": 0.0,
            "reference": 1.0,
            "bar": 0.95,
            "action": "greedy",
            "epsilon": None,
            **given,
        }
    )


def _key_to_door(size: int, attempt_steps: int, horizon: int, **given: Any) -> LearningTask:
    return LearningTask(
        name=f"key-to-door-{size}",
        task="key-to-door",
        task_args={"size": size, "attempt_steps": attempt_steps, "horizon": horizon},
        **given,
    )


def _delivery(name: str, **given: Any) -> LearningTask:
    return LearningTask(
        name=name,
        task="package-delivery",
        task_args={"road": 10, "packages": [1, 2], "limit": 50},
        measure="goals_completed",
        random=0.16,
        reference=1.5,
        bar=halfway(0.16, 1.5),
        most_steps=400_000,
        episodes=32,
        updates=30,
        **given,
    )


TASKS = (
    _tmaze(20, most_steps=40_000),
    _tmaze(20, name="tmaze-20-plain", most_steps=40_000, epsilon=0.1),
    _tmaze(50, most_steps=150_000),
    _tmaze(100, most_steps=250_000, encoders=ENCODERS),
    _tmaze(1000, most_steps=3_000_000),  # for a GPU: gpu.sh
    LearningTask(
        name="bandit",
        task="bandit",
        task_args={"arms": 5, "pulls": 50},
        random=25.0,
        reference=37.2,
        bar=34.5,
        most_steps=600_000,
        episodes=48,
    ),
    LearningTask(
        name="dark-room",
        task="dark-room",
        task_args={"size": 5, "attempts": 4, "attempt_steps": 15},
        random=2.42,
        reference=54.2,
        bar=40.0,
        stopping_bar=41.0,
        most_steps=800_000,
        episodes=48,
        updates=75,
        action="greedy",
        stopping_episodes=200,
        train={**_STEADY, **_SOON},
    ),
    _key_to_door(
        4,
        16,
        80,
        random=2.49,
        reference=28.8,
        bar=20.0,
        most_steps=800_000,
        episodes=48,
        updates=75,
        action="greedy",
        stopping_episodes=200,
        train={**_STEADY, **_SOON},
    ),
    _key_to_door(
        6,
        36,
        150,
        random=1.8,
        reference=37.9,
        bar=halfway(1.8, 37.9),
        attempt_gain=1.3,
        most_steps=1_000_000,
        episodes=32,
        updates=40,
        action="greedy",
        stopping_episodes=200,
        train={**_STEADY, **_SOON, "learning_rate": 5e-4, "decay_after": 3_000},
    ),
    LearningTask(
        name="repeat-previous",
        task="popgym/RepeatPreviousEasy",
        random=-0.503,
        reference=1.0,
        bar=0.95,
        most_steps=400_000,
        epsilon=0.1,
        encoders=("transformer", "gru"),
    ),
    LearningTask(
        name="repeat-first",
        task="popgym/RepeatFirstEasy",
        random=-0.496,
        reference=1.0,
        bar=halfway(-0.496, 1.0),
        most_steps=400_000,
    ),
    LearningTask(
        name="autoencode",
        task="popgym/AutoencodeEasy",
        random=-0.497,
        reference=1.0,
        bar=halfway(-0.497, 1.0),
        most_steps=800_000,
        action="greedy",
        train={"acting_discount": 0.9},
        encoders=("transformer", "gru"),
    ),
    LearningTask(
        name="count-recall",
        task="popgym/CountRecallEasy",
        random=-0.928,
        reference=1.0,
        bar=halfway(-0.928, 1.0),
        most_steps=800_000,
        action="greedy",
        train={"acting_discount": 0.9},
        encoders=("transformer", "gru"),
    ),
    LearningTask(
        name="cartpole-positions",
        task="popgym/PositionOnlyCartPoleEasy",
        random=0.111,
        reference=1.0,
        bar=0.95,
        most_steps=300_000,
        action="greedy",
        train={**_STEADY, **_SOON, "discounts": (0.9, 0.97)},
    ),
    LearningTask(
        name="pendulum",
        task="gym/Pendulum-v1",
        random=-1_230.0,
        reference=-150.0,
        bar=-250.0,
        most_steps=150_000,
        episodes=8,
        updates=400,
        action="greedy",
        epsilon=0.3,
        train={
            "context_length": 16,
            "burn_in": 4,
            "attention_window": 16,
            "target_rate": 0.02,
            "average_rate": 0.005,
            "cloning_weight": 0.0,
            "learning_rate": 1e-3,
            "return_steps": 3,
            "discounts": (0.9, 0.97),
            **_SOON,
        },
    ),
    LearningTask(
        name="maze-7",
        task="maze",
        task_args={"size": 7, "goals": [2, 2], "limit": 40},
        measure="goals_completed",
        random=0.41,
        reference=2.0,
        bar=1.8,
        most_steps=400_000,
        episodes=48,
        is_retold=True,
    ),
    LearningTask(
        name="frozen-lake",
        task="frozen-lake",
        task_args={"size": 4, "attempts": 5},
        random=0.125,
        reference=5.0,
        bar=halfway(0.125, 5.0),
        most_steps=600_000,
        episodes=32,
    ),
    LearningTask(
        name="wind",
        task="wind",
        task_args={"actions": "discrete", "limit": 40, "radius": 0.15, "strength": 0.05},
        random=0.20,
        reference=31.2,
        bar=halfway(0.20, 31.2),
        most_steps=600_000,
    ),
    _delivery("delivery-plain"),
    _delivery("delivery-retold", is_retold=True),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: a task, an encoder and a seed."""

    task: LearningTask
    encoder: str
    seed: int

    @property
    def name(self) -> str:
        """Also the name of its files."""
        return f"{self.task.name}-{self.encoder}-{self.seed}"

    @property
    def definition(self) -> dict[str, Any]:
        """All that its figures depend on, beside the code."""
        return {**asdict(self.task), "encoders": [self.encoder], "seed": self.seed}


def all_cells() -> Iterator[Cell]:
    """One seed of every task before the second of any."""
    for seed in SEEDS:
        for task in TASKS:
            for encoder in task.encoders:
                yield Cell(task=task, encoder=encoder, seed=seed)

"""The naive preset: how it is asked for, and the fault that it is there to show."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from made_up_windows import make_config, make_schema, make_window

from retold.cli.commands import COMMANDS
from retold.cli.flags import read_command_line, values_from_toml
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import UsageError
from retold.schemas.spaces import BoxSpace, DiscreteSpace, Space
from retold.train.batch import Batch, make_batch
from retold.train.config import TrainConfig
from retold.train.learner import Learner

NAIVE = TrainConfig.PRESETS["naive"]


def read_train(*flags: str) -> TrainConfig:
    command = COMMANDS["train"]
    config, _ = read_command_line(
        command.line, command.config_class, ["run", "--data", "raw", *flags]
    )
    assert isinstance(config, TrainConfig)
    return config


def test_a_preset_is_what_flags_and_files_begin_with(tmp_path: Path) -> None:
    naive = read_train("--preset", "naive")
    assert all(getattr(naive, name) == value for name, value in NAIVE.items())
    assert naive == dataclasses.replace(read_train(), **NAIVE)
    assert read_train("--critics", "6", "--preset", "naive").critics == 6
    file = tmp_path / "train.toml"
    file.write_text('preset = "naive"\npopart = true\n')
    both = read_train("--config", str(file))
    assert both == dataclasses.replace(naive, popart=True)
    found = values_from_toml(TrainConfig, {"preset": "naive", "critics": 3}, where="loop.toml")
    assert found == {**NAIVE, "critics": 3}


def test_a_preset_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--preset is 'naif', which is none of naive\. Did you"):
        read_train("--preset", "naif")
    with pytest.raises(UsageError, match=r"x\.toml: 'preset' is 3, which is none of naive"):
        values_from_toml(TrainConfig, {"preset": 3}, where="x.toml")


def make_batch_without_reward(schema: DatasetSchema) -> Batch:
    windows = [make_window(8, seed, schema, reward=np.zeros(8, np.float32)) for seed in range(4)]
    return make_batch(windows, most_goals=0, burn_in=0)


@pytest.mark.parametrize("moves_critics", [True, False])
@pytest.mark.parametrize("action", [DiscreteSpace(3), BoxSpace((2,), "float32", -1.0, 1.0)])
def test_the_actors_loss_reaches_critics_only_where_it_is_asked_to(
    action: Space, moves_critics: bool
) -> None:
    schema = make_schema(action)
    config = make_config(critic_weight=0.0, cloning_weight=0.0, actor_moves_critics=moves_critics)
    learner = Learner(config, schema)
    learner.update(make_batch_without_reward(schema))
    for name, parameter in learner.policy.heads.named_parameters():
        is_reached = parameter.grad is not None and bool(parameter.grad.any())
        assert is_reached == (moves_critics or not name.startswith("critic")), name


def values_without_reward(*, moves_critics: bool) -> float:
    """What critics come to believe of data that earns nothing and never ends."""
    schema = make_schema()
    changes = {**NAIVE, "discounts": (0.9,), "acting_discount": 0.9}
    changes |= {"actor_moves_critics": moves_critics}
    changes |= {"target_rate": 0.2, "learning_rate": 3e-3, "reward_scale": 1.0}
    learner = Learner(make_config(**changes), schema)
    batch = make_batch_without_reward(schema)
    return float(np.mean([learner.update(batch)["value_0.9"] for _ in range(150)][-30:]))


def test_an_actor_that_moves_its_critics_comes_to_believe_in_rewards() -> None:
    honest = values_without_reward(moves_critics=False)
    naive = values_without_reward(moves_critics=True)
    # Each bootstrap adds online_weight / (2 * critic_weight) = 0.05: 0.5 where it sums up.
    assert abs(honest) < 0.1
    assert naive > 0.3, (naive, honest)

"""What `retold evaluate` makes of the episodes that it plays."""

from pathlib import Path

import numpy as np
import pytest

from retold.evaluate.command import EvaluateConfig, evaluate
from retold.policy.acting import RandomActor
from retold.policy.rollout import ActionChoice, EpisodeAssignment, roll_out
from retold.schemas.exploration import NO_EXPLORATION
from retold.schemas.identity import world_seed
from retold.tasks.registry import make_task, task_schema

_EPISODES = 5


def test_evaluate_scores_every_attempt_that_a_reset_ended() -> None:
    room = {"size": 2, "attempts": 4, "attempt_steps": 5}
    score = evaluate(
        EvaluateConfig(policy=Path("random"), task="dark-room", task_args=room, episodes=_EPISODES)
    )
    actor = RandomActor()
    played = roll_out(
        [make_task("dark-room", room)],
        task_schema("dark-room", room),
        (EpisodeAssignment(i, world_seed(0, i, evaluation=True)) for i in range(_EPISODES)),
        ActionChoice(run_seed=0, stage="evaluate", is_greedy=True, exploration=NO_EXPLORATION),
        lambda: actor,
    )
    # The fourth attempt is ended by the episode's end, not by a reset.
    parts = np.stack([episode.reward.reshape(4, 5).sum(1) for episode in played])
    assert [row["attempt"] for row in score.attempts] == [1, 2, 3]
    assert {row["episodes"] for row in score.attempts} == {_EPISODES}
    means = [row["mean_return"] for row in score.attempts]
    assert means == pytest.approx(parts[:, :3].mean(0).tolist())
    assert len(set(means)) > 1


def test_evaluate_knows_no_attempts_where_nothing_was_reset() -> None:
    score = evaluate(EvaluateConfig(policy=Path("random"), task="bandit", episodes=2))
    assert score.attempts == ()

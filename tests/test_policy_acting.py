"""Acting step by step gives what the parallel forward gives, at any length and in any slot."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from made_up_windows import make_window
from numpy.typing import NDArray

from retold.policy.acting import PolicyActor, RandomActor
from retold.policy.architecture import ArchitectureConfig
from retold.policy.inputs import pad_rows, stack_windows
from retold.policy.network import Policy
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Window
from retold.schemas.spaces import BoxSpace, DictSpace, DiscreteSpace
from retold.schemas.vocabulary import GoalFamily, GoalVocabulary

TOLERANCE = 1e-5
"""Absolute, float32: sums of the two forms are taken in another order."""
GOALS = 3
VOCABULARY = GoalVocabulary((GoalFamily("occurrence", (("take", "leave"), ("wood", "stone"))),))
SCHEMA = DatasetSchema(
    tasks=(
        TaskDescription(
            name="made-up",
            kwargs={},
            code_version="1",
            limit_is="truncation",
            horizon=50,
            vocabulary=VOCABULARY,
            max_instruction_length=GOALS,
        ),
    ),
    observation_space=DictSpace(
        (
            ("map", BoxSpace((3, 2), "uint8", 0, 5)),
            ("vector", BoxSpace((2,), "float32", -1.0, 1.0)),
        )
    ),
    action_space=DiscreteSpace(4),
)
Outputs = NDArray[np.float64]


def make_policy(window: int, layers: int = 3, encoder: Any = "transformer") -> Policy:
    torch.manual_seed(0)
    architecture = ArchitectureConfig(
        encoder=encoder,
        model_width=32,
        layers=layers,
        heads=4,
        attention_window=window,
        head_width=16,
    )
    return Policy(SCHEMA, architecture, (0.9, 0.99), 0.9).eval()


def random_episode(seed: int, length: int) -> Window:
    rng = np.random.default_rng(seed)
    met = np.sort(rng.integers(0, length, GOALS))
    return make_window(
        length,
        seed,
        SCHEMA,
        instruction=tuple(rng.integers(0, VOCABULARY.size, GOALS).tolist()),
        reset=rng.random(length) < 0.2,
        progress=(np.arange(length + 1)[:, None] > met).sum(1).astype(np.uint32),
    )


def parallel_chances(policy: Policy, episode: Window) -> Outputs:
    """`[time + 1, actions]` of the acting discount's actor."""
    head = policy.discounts.index(policy.acting_discount)
    with torch.no_grad():
        features = policy.encode(stack_windows([episode], GOALS))
        return np.asarray(policy.heads.log_policy(features)[0, :, head].exp().double().numpy())


def act_through(
    actor: PolicyActor, turns: Sequence[Sequence[tuple[int, Window, int]]]
) -> dict[str, list[Outputs]]:
    """Plays (slot, episode, step) of every turn as one batch; the outputs by episode."""
    outputs: dict[str, list[Outputs]] = {}
    for turn in turns:
        for slot, episode, step in turn:
            if step == 0:
                actor.begin(slot, episode.record.instruction)
        chances = actor.act(
            [slot for slot, _, _ in turn],
            [{p: rows[step] for p, rows in e.observation.items()} for _, e, step in turn],
            [int(episode.progress[step]) for _, episode, step in turn],
        )
        for (slot, episode, step), row in zip(turn, chances, strict=True):
            outputs.setdefault(episode.record.episode_id, []).append(row)
            if step < episode.length:
                actor.record(
                    slot,
                    {path: rows[step] for path, rows in episode.action.items()},
                    float(episode.reward[step]),
                    bool(episode.reset[step]),
                )
    return outputs


@pytest.mark.parametrize("window", [1, 2, 7, 24, 64])
def test_acting_equals_the_parallel_forward_at_any_length(window: int) -> None:
    policy = make_policy(window)
    episode = random_episode(seed=window, length=40)
    steps = [[(0, episode, step)] for step in range(episode.length + 1)]
    (acted,) = act_through(PolicyActor(policy, 1, "p", 0), steps).values()
    assert np.abs(np.stack(acted) - parallel_chances(policy, episode)).max() < TOLERANCE


@pytest.mark.parametrize("encoder", ["transformer", "gru", "memoryless"])
def test_slots_may_begin_and_end_apart_and_be_used_again(encoder: str) -> None:
    policy = make_policy(window=6, encoder=encoder)
    rng = np.random.default_rng(0)
    waiting = [random_episode(seed, int(rng.integers(1, 25))) for seed in range(12)]
    episodes = list(waiting)
    running: dict[int, tuple[Window, int]] = {}
    turns = []
    while waiting or running:
        for slot in range(4):
            # A slot now and then rests a turn, so that batches have every size and order.
            if slot not in running and waiting and rng.random() < 0.5:
                running[slot] = (waiting.pop(), 0)
        batch = [slot for slot in rng.permutation(list(running)).tolist() if rng.random() < 0.8]
        turns.append([(slot, *running[slot]) for slot in batch])
        for slot in batch:
            episode, step = running.pop(slot)
            if step < episode.length:
                running[slot] = (episode, step + 1)
    outputs = act_through(PolicyActor(policy, 4, "p", 0), [turn for turn in turns if turn])
    assert len(outputs) == len(episodes)
    for episode in episodes:
        acted = np.stack(outputs[episode.record.episode_id])
        assert np.abs(acted - parallel_chances(policy, episode)).max() < TOLERANCE


def test_features_of_both_forms_are_equal_too() -> None:
    policy = make_policy(window=5)
    episode = random_episode(seed=3, length=30)
    inputs = stack_windows([episode], GOALS)
    steps = policy.trajectory_encoder.start(1)
    with torch.no_grad():
        whole = policy.encode(inputs)[0]
        rows = [
            steps.advance(features, np.array([step]), None)[0].clone()
            for step, features in enumerate(policy.timestep_encoder(inputs)[0][:, None])
        ]
        values = policy.heads.values(whole)
        step_values = policy.heads.values(torch.stack(rows))
    assert (torch.stack(rows) - whole).abs().max() < TOLERANCE
    assert (step_values - values).abs().max() < TOLERANCE


def test_nothing_older_than_the_window_is_seen_by_one_layer() -> None:
    policy = make_policy(window=4, layers=1)
    features = torch.randn(10, 32)
    step = torch.arange(10)
    changed = features.clone()
    changed[2] += 1
    with torch.no_grad():
        before = policy.trajectory_encoder(features, step, [10])
        after = policy.trajectory_encoder(changed, step, [10])
    rows = (before - after).abs().amax(1) > 0
    assert rows.tolist() == [False, False, True, True, True, True, False, False, False, False]


def test_positions_are_relative() -> None:
    policy = make_policy(window=64)
    features = torch.randn(10, 32)
    step = torch.arange(10)
    with torch.no_grad():
        here = policy.trajectory_encoder(features, step, [10])
        there = policy.trajectory_encoder(features, step + 1_000, [10])
    # The angles of steps near 1,000 are larger numbers, rounded more coarsely.
    assert (here - there).abs().max() < 1e-4


def test_a_cut_sequence_differs_by_what_its_layers_saw_before_the_cut_alone() -> None:
    policy = make_policy(window=6, layers=3)
    features, step = torch.randn(60, 32), torch.arange(60)
    with torch.no_grad():
        whole = policy.trajectory_encoder(features, step, [60])[20:]
        part = policy.trajectory_encoder(features[20:], step[20:], [40])
    difference = (whole - part).abs().amax(1)
    reach = 3 * (6 - 1)  # every layer looks back over one window
    assert difference[reach:].max() < TOLERANCE
    # The default burn-in, one window, leaves less than the rows before it had.
    assert 0 < difference[6:reach].max() < difference[:6].max() / 2


def test_padded_neighbours_never_change_a_sequence() -> None:
    policy = make_policy(window=6)
    short, long = random_episode(1, 5), random_episode(2, 20)
    with torch.no_grad():
        alone = policy.encode(stack_windows([short], GOALS))[0]
        beside = policy.encode(stack_windows([short, long], GOALS))[0, : short.length + 1]
    assert (alone - beside).abs().max() < TOLERANCE


def test_random_actions_are_uniform() -> None:
    actor = RandomActor()
    actor.begin(0, ())
    assert actor.act([0], [{}], [0]) is None
    assert (actor.policy_id, actor.update) == ("random", None)


def test_padding_is_zero_and_keeps_the_dtype() -> None:
    rows = pad_rows([np.ones(2, np.uint8), np.ones(3, np.uint8)], 3)
    assert rows.dtype == torch.uint8
    assert rows.tolist() == [[1, 1, 0], [1, 1, 1]]

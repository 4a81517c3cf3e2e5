"""What the policy sees, and the encoders that suit every kind of space."""

import dataclasses
from typing import Literal

import numpy as np
import pytest
import torch
from made_up_windows import make_window

from retold.policy.acting import PolicyActor
from retold.policy.architecture import ArchitectureConfig
from retold.policy.inputs import PolicyInputs, encode_instruction, stack_windows
from retold.policy.instruction_encoder import InstructionEncoder
from retold.policy.leaf_encoders import make_leaf_encoder
from retold.policy.network import Policy
from retold.schemas.dataset_schema import DatasetSchema, TaskDescription
from retold.schemas.episode import Window
from retold.schemas.errors import UsageError
from retold.schemas.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TextSpace,
    TupleSpace,
    space_leaves,
)
from retold.schemas.vocabulary import GoalFamily, GoalVocabulary

VOCABULARY = GoalVocabulary(
    (
        GoalFamily("occurrence", (("collect",), ("wood", "stone"))),
        GoalFamily("state", (("travel",), ("0", "1"), ("0", "1"))),
    )
)
EVERY_SPACE = DictSpace(
    (
        ("amount", BoxSpace((), "float32", 0.0, 1.0)),
        ("binary", MultiBinarySpace((2, 2))),
        ("frame", BoxSpace((64, 64, 3), "uint8", 0, 255)),
        ("map", BoxSpace((3, 2), "uint8", 0, 5)),
        ("number", DiscreteSpace(4)),
        ("numbers", MultiDiscreteSpace((3, 4))),
        ("pair", TupleSpace((BoxSpace((2,), "int8", -1, 1), BoxSpace((2,), "float32", -9.0, 9.0)))),
    )
)


def make_schema(
    observation: Space | None = None, action: Space | None = None, most_goals: int = 3
) -> DatasetSchema:
    task = TaskDescription(
        name="made-up",
        kwargs={},
        code_version="1",
        limit_is="truncation",
        horizon=50,
        vocabulary=VOCABULARY if most_goals else None,
        max_instruction_length=most_goals,
    )
    return DatasetSchema(
        tasks=(task,),
        observation_space=observation or BoxSpace((2,), "float32", -1.0, 1.0),
        action_space=action or DiscreteSpace(3),
    )


def make_policy(schema: DatasetSchema) -> Policy:
    torch.manual_seed(0)
    architecture = ArchitectureConfig(model_width=16, layers=1, heads=2, head_width=8)
    return Policy(schema, architecture, (0.9, 0.99), 0.99).eval()


def random_episode(schema: DatasetSchema, length: int, seed: int) -> Window:
    """A whole episode as one window, with some reward, reset and progress everywhere."""
    rng = np.random.default_rng(seed)
    most_goals = schema.tasks[0].max_instruction_length
    return make_window(
        length,
        seed,
        schema,
        instruction=tuple(rng.integers(0, VOCABULARY.size, most_goals).tolist()),
        reset=rng.random(length) < 0.3,
        progress=np.minimum(np.arange(length + 1) // 4, most_goals).astype(np.uint32),
    )


def cut(episode: Window, start: int, length: int) -> Window:
    """The transitions `start..start+length-1` with the row before, as the reader gives them."""
    row, after = slice(start, start + length), slice(start, start + length + 1)
    return dataclasses.replace(
        episode,
        start=start,
        observation={path: rows[after] for path, rows in episode.observation.items()},
        action={path: rows[row] for path, rows in episode.action.items()},
        reward=episode.reward[row],
        terminated=episode.terminated[row],
        truncated=episode.truncated[row],
        reset=episode.reset[row],
        progress=episode.progress[after],
        previous_action={p: rows[start - 1] for p, rows in episode.action.items()}
        if start
        else None,
        previous_reward=float(episode.reward[start - 1]) if start else 0.0,
        previous_reset=bool(episode.reset[start - 1]) if start else False,
    )


def leaves_of(inputs: PolicyInputs) -> dict[str, torch.Tensor]:
    per_step = {
        name: getattr(inputs, name)
        for name in ("has_previous", "previous_reward", "previous_reset", "step", "progress")
    }
    return {**inputs.observation, **inputs.previous_action, **per_step}


def test_a_cut_window_sees_what_the_whole_episode_sees_there() -> None:
    episode = random_episode(make_schema(), 12, seed=1)
    whole = leaves_of(stack_windows([episode], 3))
    # Every start: a dropped previous action shows only where that action is not 0.
    for start in range(9):
        part = leaves_of(stack_windows([cut(episode, start, 4)], 3))
        for name, rows in part.items():
            assert torch.equal(rows[0], whole[name][0, start : start + 5]), (start, name)


def test_previous_inputs_come_from_the_transition_before() -> None:
    episode = random_episode(make_schema(), 4, seed=2)
    inputs = stack_windows([episode], 3)
    assert inputs.previous_reward[0].tolist() == [0.0, *episode.reward.tolist()]
    assert inputs.previous_reset[0].tolist() == [False, *episode.reset.tolist()]
    assert inputs.previous_action["action"][0].tolist() == [0, *episode.action["action"].tolist()]
    assert inputs.has_previous[0].tolist() == [False, True, True, True, True]
    assert inputs.step[0].tolist() == [0, 1, 2, 3, 4]


def test_a_step_is_encoded_as_in_a_window() -> None:
    schema = make_schema(EVERY_SPACE)
    episode = random_episode(schema, 6, seed=3)
    policy = make_policy(schema)
    actor = PolicyActor(policy, 1, "test", None)
    actor.begin(0, episode.record.instruction)
    with torch.no_grad():
        whole = policy.timestep_encoder.known(stack_windows([episode], 3))[0]
    for step in range(5):
        observation = {path: rows[step] for path, rows in episode.observation.items()}
        actor.act([0], [observation], [int(episode.progress[step])])
        # Divisions are products with the inverse, and instructions a product of other sizes.
        with torch.no_grad():
            np.testing.assert_allclose(actor._rows.known(None)[0], whole[step], atol=1e-6)
        action = {path: rows[step] for path, rows in episode.action.items()}
        actor.record(0, action, float(episode.reward[step]), bool(episode.reset[step]))


def test_the_null_action_is_not_action_zero() -> None:
    policy = make_policy(make_schema())
    inputs = stack_windows([random_episode(make_schema(), 1, seed=4)], 3)
    zero = {"action": torch.zeros_like(inputs.previous_action["action"])}
    null = dataclasses.replace(
        inputs, previous_action=zero, has_previous=torch.zeros_like(inputs.has_previous)
    )
    first = dataclasses.replace(
        inputs, previous_action=zero, has_previous=torch.ones_like(inputs.has_previous)
    )
    with torch.no_grad():
        difference = policy.timestep_encoder(null) - policy.timestep_encoder(first)
    assert difference.abs().amax() > 1e-3


def test_an_action_space_may_start_anywhere() -> None:
    base, shifted = make_schema(), make_schema(action=DiscreteSpace(3, start=5))
    episode = random_episode(base, 4, seed=5)
    moved = dataclasses.replace(episode, action={"action": episode.action["action"] + 5})
    with torch.no_grad():
        one = make_policy(base).encode(stack_windows([episode], 3))
        other = make_policy(shifted).encode(stack_windows([moved], 3))
    assert torch.equal(one, other)


def test_every_kind_of_space_is_encoded_and_trained() -> None:
    schema = make_schema(EVERY_SPACE)
    policy = make_policy(schema)
    policy.encode(stack_windows([random_episode(schema, 3, seed=6)], 3)).square().sum().backward()
    for name, parameter in policy.timestep_encoder.observation.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "space",
    [DiscreteSpace(4), MultiDiscreteSpace((3, 4)), MultiBinarySpace((2, 2)), EVERY_SPACE],
    ids=lambda space: type(space).__name__,
)
def test_encoders_give_the_features_that_they_declare(space: Space) -> None:
    for leaf in space_leaves(space, "observation"):
        encoder = make_leaf_encoder(leaf)
        rows = torch.zeros((2, 3, *leaf.shape), dtype=getattr(torch, leaf.dtype))
        assert encoder(rows).shape == (2, 3, encoder.features), leaf.path


def test_unbounded_amounts_are_taken_as_they_are() -> None:
    space = BoxSpace((2,), "float32", (float("-inf"), 0.0), (float("inf"), 4.0))
    (leaf,) = space_leaves(space, "observation")
    encoded = make_leaf_encoder(leaf)(torch.tensor([[[7.0, 4.0]]]))
    assert encoded.flatten().tolist() == [7.0, 1.0]


def test_what_the_policy_cannot_see_or_do_is_named() -> None:
    with pytest.raises(UsageError, match="'observation', a TextSpace"):
        make_policy(make_schema(TextSpace(10)))
    with pytest.raises(UsageError, match=r"TextSpace.*bounded float Box spaces"):
        make_policy(make_schema(action=TextSpace(10)))
    with pytest.raises(UsageError, match="Box without finite bounds"):
        make_policy(make_schema(action=BoxSpace((2,), "float32", float("-inf"), 1.0)))


def encode_goals(
    instruction: tuple[int, ...], progress: int, visibility: Literal["full", "current"] = "full"
) -> torch.Tensor:
    torch.manual_seed(0)
    encoder = InstructionEncoder(make_schema(), 16, visibility=visibility)
    with torch.no_grad():
        ids = torch.from_numpy(encode_instruction(instruction, 3))[None]
        encoded: torch.Tensor = encoder(ids, torch.tensor([[progress]]))[0, 0]
    return encoded


def test_completed_goals_are_out_of_sight() -> None:
    assert torch.equal(encode_goals((1, 2, 3), 1), encode_goals((4, 2, 3), 1))
    assert torch.equal(encode_goals((1, 2, 3), 1), encode_goals((2, 3), 0))
    assert torch.equal(encode_goals((1, 2, 3), 3), encode_goals((), 0))


def test_goals_that_are_left_are_told_apart_by_words_and_place() -> None:
    seen = [encode_goals(goals, 0) for goals in ((1,), (2,), (1, 2), (2, 1), (1, 2, 1), ())]
    for number, one in enumerate(seen):
        for other in seen[:number]:
            assert (one - other).abs().amax() > 1e-3


def test_the_current_goal_may_be_all_that_is_seen() -> None:
    seen = encode_goals((1, 2, 3), 1, "current")
    assert torch.equal(seen, encode_goals((4, 2), 1, "current"))
    assert torch.equal(seen, encode_goals((2, 5, 1), 0, "current"))
    assert (seen - encode_goals((1, 3, 2), 1, "current")).abs().amax() > 1e-3
    assert torch.equal(encode_goals((1, 2), 2, "current"), encode_goals((), 0, "current"))


def test_the_residual_image_encoder_keeps_leading_axes_and_trains() -> None:
    (leaf,) = space_leaves(BoxSpace((64, 48, 3), "uint8", 0, 255), "observation")
    encoder = make_leaf_encoder(leaf, "impala")
    frames = torch.randint(0, 256, (2, 3, 64, 48, 3), dtype=torch.uint8)
    features = encoder(frames)
    assert features.shape == (2, 3, encoder.features)
    torch.testing.assert_close(encoder(frames[1, 2]), features[1, 2], rtol=1e-4, atol=1e-5)
    features.square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), name


def test_a_task_without_goals_needs_no_instruction() -> None:
    schema = make_schema(most_goals=0)
    encoded = make_policy(schema).encode(stack_windows([random_episode(schema, 3, seed=7)], 0))
    assert encoded.shape == (1, 4, 16)

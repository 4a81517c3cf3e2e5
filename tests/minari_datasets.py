"""Small Minari datasets of every kind of space, and comparison bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from retold.dataset.import_command import ImportConfig, ImportResult, import_dataset

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "goal": (
        spaces.Dict(
            {
                "observation": VECTOR,
                "achieved_goal": spaces.Box(-10, 10, (2,), np.float64),
                "desired_goal": spaces.Box(-10, 10, (2,), np.float64),
            }
        ),
        spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32)),
    ),
    "tuple": (
        spaces.Tuple((spaces.Discrete(4, start=-1), spaces.MultiBinary((2, 2)))),
        spaces.MultiDiscrete(np.array([[3, 2], [4, 5]])),
    ),
    "nested": (
        spaces.Dict(
            {
                "text": spaces.Text(6, min_length=0, charset="abä "),
                "inner": spaces.Tuple((VECTOR, spaces.Dict({"words": spaces.Text(3)}))),
                "a key": spaces.Box(0, 9, (), np.int16),
            }
        ),
        spaces.Dict({"move": spaces.Discrete(5), "say": spaces.Text(4)}),
    ),
    "image": (spaces.Box(0, 255, (32, 32, 3), np.uint8), spaces.Discrete(3)),
    "text": (spaces.Text(8), spaces.MultiBinary(3)),
}
Infos = Callable[[int, np.random.Generator], dict[str, Any] | None]


def no_infos(length: int, rng: np.random.Generator) -> None:
    return None


def some_infos(length: int, rng: np.random.Generator) -> dict[str, Any]:
    """With the reset's, so one row more than transitions."""
    qpos = rng.standard_normal((length + 1, 2))
    qpos[0] = np.nan, -np.inf
    return {"qpos": qpos, "inner": {"count": list(rng.integers(0, 9, length + 1))}}


def sample_rows(space: spaces.Space[Any], count: int) -> Any:
    """`count` rows of a space as Minari's buffers hold them."""
    if isinstance(space, spaces.Dict):
        return {key: sample_rows(item, count) for key, item in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample_rows(item, count) for item in space.spaces)
    rows = [space.sample() for _ in range(count)]
    return rows if isinstance(space, spaces.Text) else np.array(rows, space.dtype)


def make_buffer(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    length: int,
    rng: np.random.Generator,
    terminated: bool = False,
    seed: int | None = None,
    infos: Infos = no_infos,
) -> EpisodeBuffer:
    observation_space.seed(int(rng.integers(2**31)))
    action_space.seed(int(rng.integers(2**31)))
    last = np.arange(length) == length - 1
    return EpisodeBuffer(
        seed=seed,
        options={"level": 2, "inner": {"name": "ä"}} if seed == 0 else None,
        observations=sample_rows(observation_space, length + 1),
        actions=sample_rows(action_space, length),
        rewards=list(rng.standard_normal(length)),
        terminations=list(last & terminated),
        truncations=list(last & (not terminated)),
        infos=infos(length, rng),
    )


def make_dataset(
    name: str, data_format: str = "hdf5", infos: Infos = some_infos
) -> minari.MinariDataset:
    """Unequal lengths, one-step episodes, both ends, seed 0 and none, infos here and there."""
    rng = np.random.default_rng(0)
    observation_space, action_space = SPACES[name]
    has_gaps = data_format == "hdf5"  # Minari's Arrow files lose None
    shapes: list[tuple[int, bool, int | None, Infos]] = [
        (1, True, 0, infos),
        (7, False, None, no_infos if has_gaps else infos),
        (20, True, 2**31, infos),
        (1, False, 5, no_infos if has_gaps else infos),
    ]
    buffers = [
        make_buffer(*SPACES[name], length=length, rng=rng, terminated=end, seed=seed, infos=chosen)
        for length, end, seed, chosen in shapes
    ]
    dataset = minari.create_dataset_from_buffers(
        f"tests/{name}-v0",
        buffers,
        observation_space=observation_space,
        action_space=action_space,
        data_format=data_format,
        jpeg_encoding=False,
        author={"one", "two"},
        algorithm_name="random",
        description="ä",
    )
    dataset.storage.update_metadata({"env_spec": json.dumps(ENVIRONMENT), "ref_max_score": 2.5})
    metadata = [{"success": bool(number % 2), "score": number / 3} for number in range(4)]
    dataset.storage.update_episode_metadata(metadata)
    return minari.load_dataset(f"tests/{name}-v0")


ENVIRONMENT = {
    "id": "CartPole-v1",
    "entry_point": "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    "reward_threshold": 475.0,
    "nondeterministic": False,
    "max_episode_steps": 500,
    "order_enforce": True,
    "disable_env_checker": False,
    "kwargs": {},
    "additional_wrappers": [],
    "vector_entry_point": None,
}


def assert_same(one: Any, two: Any, where: str = "") -> None:
    """Equal types, keys, dtypes, shapes and bytes."""
    if isinstance(one, dict):
        assert list(one) == list(two), where
        for key in one:
            assert_same(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, tuple):
        assert isinstance(two, tuple) and len(one) == len(two), where
        for number, (first, second) in enumerate(zip(one, two, strict=True)):
            assert_same(first, second, f"{where}/{number}")
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (two.dtype, two.shape), where
        assert one.tobytes() == two.tobytes(), where
    else:
        assert type(one) is type(two) and one == two, where


def assert_same_datasets(one: minari.MinariDataset, two: minari.MinariDataset) -> None:
    assert one.observation_space == two.observation_space
    assert one.action_space == two.action_space
    assert len(one) == len(two) and one.total_steps == two.total_steps
    assert one.env_spec == two.env_spec and one.id == two.id
    for first, second in zip(one, two, strict=True):
        assert_same(vars(first), vars(second))
    assert metadata_of(one) == metadata_of(two)


def metadata_of(dataset: minari.MinariDataset) -> list[dict[str, Any]]:
    return list(dataset.storage.get_episode_metadata(range(len(dataset))))


def data_folder(root: Path, name: str) -> Path:
    return root / "tests" / f"{name}-v0"


def file_contents(path: Path) -> dict[str, Any]:
    """Every dataset and attribute of a file, by name."""
    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        for key, value in node.attrs.items():
            found[f"{name}@{key}"] = value
        if isinstance(node, h5py.Dataset):
            is_text = h5py.check_string_dtype(node.dtype) is not None and node.dtype.kind == "O"
            found[name] = node.asstr()[()].tolist() if is_text and node.shape else node[()]

    with h5py.File(path) as file:
        found |= {f"@{key}": value for key, value in file.attrs.items()}
        file.visititems(visit)
    return dict(sorted(found.items()))


def import_minari(source: Path | str, dataset: Path, **options: Any) -> ImportResult:
    """`retold import minari`."""
    return import_dataset(
        ImportConfig(format="minari", source=Path(source), dataset=dataset, **options)
    )

"""Identities fixed before any work is scheduled, and the named random streams that follow from them."""

import hashlib

import numpy as np
from numpy.typing import NDArray

EVALUATION_SEED_START = 2**30
"""World seeds of training lie below this number, those of evaluation at or above it."""


def make_episode_id(dataset_id: str, run_seed: int, index: int) -> str:
    """The 32 hex digits that name collected episode `index` of `run_seed` for life (format rule 2)."""
    return _digest("episode", dataset_id, run_seed, index)


def make_variant_id(source_episode_id: str, strategy: str, relabel_seed: int, index: int) -> str:
    """The 32 hex digits that name variant `index` of an episode under one strategy and seed."""
    return _digest("variant", source_episode_id, strategy, relabel_seed, index)


def make_import_id(dataset_id: str, source_sha256: str, index: int) -> str:
    """The 32 hex digits that name episode `index` of an imported source for life."""
    return _digest("import", dataset_id, source_sha256, index)


def world_seed(run_seed: int, index: int, *, evaluation: bool = False) -> int:
    """The seed that episode `index` of a run resets its environment with.

    It depends on nothing else, so the same episodes come out of any number of environments.
    Training seeds are below 2**30, evaluation seeds in [2**30, 2**31): worlds are never shared.
    """
    stage = "evaluate" if evaluation else "collect"
    draw = int(random_stream(run_seed, f"{stage} world", index).integers(EVALUATION_SEED_START))
    return draw + EVALUATION_SEED_START if evaluation else draw


def random_stream(run_seed: int, stage: str, stable_id: str | int) -> np.random.Generator:
    """The generator of one named stream: a pure function of its three arguments."""
    name = hashlib.sha256(f"{stage}\0{stable_id}".encode()).digest()
    words = np.frombuffer(name, "<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([run_seed, *words])))


def stream_key(run_seed: int, stage: str) -> NDArray[np.uint64]:
    """The key of a family of streams that are told apart by a number."""
    return random_stream(run_seed, stage, "key").integers(2**64, size=2, dtype=np.uint64)


def numbered_stream(key: NDArray[np.uint64], number: int) -> np.random.Generator:
    """Stream `number` of a family: a pure function of both, made in a third of the time of a name."""
    return np.random.Generator(np.random.Philox(key=key, counter=[0, number, 0, 0]))


def _digest(*parts: str | int) -> str:
    text = "\0".join(str(part) for part in ("retold", *parts))
    return hashlib.sha256(text.encode()).hexdigest()[:32]

"""`retold train --dry-run`: what a run would learn from, and what an update would take."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from retold.schemas.dataset_schema import DatasetSchema
from retold.train.actor_critic import ActorCritic
from retold.train.batch import Batch
from retold.train.checkpoint import list_checkpoints
from retold.train.command import TrainResult, check_training, train
from retold.train.config import TrainConfig
from retold.train.data import TrainingData
from retold.train.device import choose_device
from retold.train.learner import Learner
from retold.train.packed_batch import pack_batch
from retold.train.parallel import joined_ranks, ranks

_MEASURED = 4
"""Windows whose activations are measured at most."""
_LOOKED_AT = 32
"""Updates whose windows are chosen, to know how many steps they have."""


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """What `retold train` would do."""

    run: str
    objective: str
    updates_done: int
    """Of the run, before this call."""
    updates: int
    """Of the run in all."""
    data: tuple[Mapping[str, str | int | float], ...]
    """Datasets with snapshot, episodes, transitions and share of the windows."""
    parameters: Mapping[str, int]
    """By part of the network, and of what is held besides."""
    windows_per_update: float
    """In the mean, of all processes."""
    tokens_per_update: float
    """Transitions, in the mean, of all processes."""
    passes: float
    """Times that the updates to come would draw each transition, in the mean."""
    devices: tuple[str, ...]
    """One for each process."""
    memory: Mapping[str, int]
    """Bytes that each process would take beside its program, estimated; `activations_bytes` is what
    some windows keep for their gradient, measured, scaled up to the longest batch, and
    `backward_bytes` what going back takes besides, about half as much."""


def train_or_plan(config: TrainConfig) -> TrainResult | TrainPlan:
    """What the command does: train, or with `dry_run` say what that would do."""
    return plan_training(config) if config.dry_run else train(config)


def plan_training(config: TrainConfig) -> TrainPlan:
    """What training would do; nothing is written, and no weight of the run is read.

    Raises:
        RunError: as `train` would.
        DatasetError: a dataset is missing or empty.
    """
    torch.set_num_threads(config.threads)
    with joined_ranks():
        return _plan(config)


def _plan(config: TrainConfig) -> TrainPlan:
    check_training(config)
    checkpoints = list_checkpoints(config.run)
    done = int(checkpoints[-1].name) if checkpoints else 0
    with TrainingData(config, {}, is_pinned=False) as data:
        learner = Learner(config, data.schema, torch.device("cpu"))
        windows, tokens = _look_ahead(config, data, done)
        steps = sum(int(reader.columns.length.sum()) for reader in data.readers)
        return TrainPlan(
            run=str(config.run),
            objective=config.objective,
            updates_done=done,
            updates=config.updates,
            data=_describe_data(config, data),
            parameters=_count_parameters(learner),
            windows_per_update=float(np.mean([len(one) for one in windows])),
            tokens_per_update=float(np.mean(tokens)),
            passes=float(np.mean(tokens)) * max(0, config.updates - done) / steps,
            devices=(choose_device(config.device).type,) * ranks(),
            memory=_estimate_memory(config, data, learner, windows),
        )


def _look_ahead(
    config: TrainConfig, data: TrainingData, done: int
) -> tuple[list[np.ndarray[tuple[int], np.dtype[np.int64]]], list[int]]:
    """Lengths of the windows of some updates, and their sums."""
    lengths = []
    for update in range(done, done + _LOOKED_AT):
        chosen = data.choose(update)
        data.next_draw = chosen.next_draw
        lengths.append(chosen.draw.length)
    return lengths, [int(one.sum()) for one in lengths]


def _describe_data(
    config: TrainConfig, data: TrainingData
) -> tuple[Mapping[str, str | int | float], ...]:
    weights = np.array(config.weight or [1.0] * len(config.data))
    return tuple(
        {
            "dataset": str(path),
            "snapshot": reader.snapshot.number,
            "episodes": len(reader),
            "variants": int((reader.columns.source >= 0).sum()),
            "transitions": int(reader.columns.length.sum()),
            "share": float(share),
        }
        for path, reader, share in zip(
            config.data, data.readers, weights / weights.sum(), strict=True
        )
    )


def _count_parameters(learner: Learner) -> dict[str, int]:
    parts = {name: _count(part) for name, part in learner.policy.named_children()}
    parts["all"] = sum(parts.values())
    if isinstance(learner.objective, ActorCritic):
        parts["target_heads_besides"] = _count(learner.objective.target_heads)
    return parts


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _estimate_memory(
    config: TrainConfig,
    data: TrainingData,
    learner: Learner,
    windows: list[np.ndarray[tuple[int], np.dtype[np.int64]]],
) -> dict[str, int]:
    weights = 4 * _count(learner.policy)
    slow = 0 if config.average_rate is None else weights
    if isinstance(learner.objective, ActorCritic):
        slow += 4 * _count(learner.objective.target_heads)
    # A process works on one batch at a time, its windows padded to the longest where they are read.
    most = -(-config.batch_size // ranks())
    longest = np.concatenate(windows).max() + 1
    batch_rows = max(int(np.sort(one)[-most:].sum()) + most for one in windows)
    activations = _activations(data, learner, most, batch_rows)
    parts = {
        "weights_and_targets_bytes": weights + slow,
        "gradients_bytes": weights,
        "optimiser_bytes": 2 * weights,
        "batch_bytes": 2 * most * int(longest) * _bytes_a_row(data.schema),
        "activations_bytes": activations,
        "backward_bytes": activations // 2,
    }
    return {**parts, "all_bytes": sum(parts.values())}


def _activations(data: TrainingData, learner: Learner, most: int, batch_rows: int) -> int:
    """Bytes kept for the gradient of a batch of so many rows.

    Some are kept once, whatever the batch: those of one window and of several tell them apart.
    """
    batches = [data.read_first(n, learner.policy.most_goals) for n in (1, min(most, _MEASURED))]
    rows = [sum(length + 1 for length in batch.lengths) for batch in batches]
    kept = [_kept_bytes(learner, batch) for batch in batches]
    if rows[1] == rows[0]:
        return kept[0] * batch_rows // rows[0]
    a_row = (kept[1] - kept[0]) / (rows[1] - rows[0])
    return round(kept[0] + a_row * (batch_rows - rows[0]))


def _bytes_a_row(schema: DatasetSchema) -> int:
    leaves = (*schema.observation_leaves, *schema.action_leaves)
    stored = sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    return stored + 32  # reward, flags, step and progress


def _kept_bytes(learner: Learner, batch: Batch) -> int:
    """What an update of a batch keeps for its gradient, weights left out. The learner is spoilt."""
    own = {p.untyped_storage().data_ptr() for p in learner.policy.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    packed = pack_batch(batch)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.objective.backward([packed], torch.tensor(float(max(1, len(packed.valid)))), 0)
    return sum(kept.values())

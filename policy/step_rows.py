"""What the policy sees at the steps of several episodes in flight, as the timestep encoder's rows."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from retold.policy.actions import make_action_codec
from retold.policy.inputs import encode_instruction
from retold.policy.leaf_encoders import VectorEncoder
from retold.policy.timestep_encoder import TimestepEncoder
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Leaves
from retold.schemas.spaces import Leaf


class StepRows:
    """Rows that are written to as episodes go on, in arrays that are made once.

    They equal what `TimestepEncoder.known` makes of the same steps.
    """

    def __init__(self, encoder: TimestepEncoder, schema: DatasetSchema, slots: int) -> None:
        self._encoder = encoder
        self._most_goals = max(task.max_instruction_length for task in schema.tasks)
        columns = encoder.columns
        self._center, self._factor, self._most = (part.numpy() for part in encoder.units())
        self._least = -self._most
        self._raw = np.zeros((slots, columns.size), np.float32)
        self._rows = np.zeros_like(self._raw)
        self._raw_tensor, self._rows_tensor = map(torch.from_numpy, (self._raw, self._rows))
        self._observation: dict[str, NDArray[Any]] = {}
        self._encoded: list[tuple[nn.Module, Tensor, slice]] = []
        for leaf in schema.observation_leaves:
            self._lay(leaf, slots)
        self._codec = make_action_codec(schema)
        self._action = np.zeros((slots, *self._codec.shape), self._codec.dtype)
        self._options = self._codec.option_vectors()
        self._action_vector = self._raw[:, columns.action]
        self.has_previous = np.zeros(slots, np.bool_)
        self._null = self._raw[:, columns.null]
        self._null[:] = 1
        self._reward = self._raw[:, columns.reward]
        self.return_to_go = (
            np.zeros(slots, np.float32)
            if columns.return_to_go is None
            else self._raw[:, columns.return_to_go]
        )
        self._reset = self._raw[:, columns.reset]
        self._share = self._raw[:, columns.step]
        self.step = np.zeros(slots, np.int64)
        self.position = np.zeros(slots, np.int64)
        self._instruction = np.zeros((slots, max(1, self._most_goals)), np.int64)
        self._progress = np.zeros(slots, np.int64)
        self._is_told = np.zeros(slots, np.bool_)
        self._is_instructed = not encoder.instruction.is_empty

    def begin(self, slot: int, instruction: tuple[int, ...], target_return: float) -> None:
        """An episode starts, as an attempt of the one before unless that is forgotten."""
        self._instruction[slot] = encode_instruction(instruction, self._most_goals)
        self._is_told[slot] = False
        self.step[slot] = 0
        self._reset[slot] = self.has_previous[slot]
        self.return_to_go[slot] = target_return

    def forget(self, slot: int) -> None:
        """Nothing came before."""
        self.has_previous[slot] = False
        self._null[slot] = 1
        self._action[slot] = 0
        self._reward[slot] = self._reset[slot] = 0
        self.position[slot] = 0

    def observe(self, slot: int, observation: Leaves, progress: int) -> None:
        """What the environment shows, and how many goals are reached."""
        for path, value in observation.items():
            self._observation[path][slot] = value
        if self._progress[slot] != progress:
            self._progress[slot] = progress
            self._is_told[slot] = False

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """What was done, and what came of it."""
        (self._action[slot],) = action.values()
        self._reward[slot] = reward
        self._reset[slot] = reset
        self.return_to_go[slot] -= reward
        self.step[slot] += 1
        self.position[slot] += 1
        self._null[slot] = 0
        self.has_previous[slot] = True

    def known(self, slots: Tensor | None) -> Tensor:
        """`[batch, features]` of some slots; None: of all. Written over by the next call."""
        for encoder, rows, columns in self._encoded:
            if slots is None:
                self._raw_tensor[:, columns] = encoder(rows)
            else:
                self._raw_tensor[slots, columns] = encoder(rows[slots])
        if self._is_instructed and not self._is_told.all():
            self._tell()
        self._action_vector[:] = self._vectors()
        self._action_vector *= self.has_previous[:, None]
        np.divide(self.step, self._encoder.horizon, out=self._share)
        np.subtract(self._raw, self._center, out=self._rows)
        np.multiply(self._rows, self._factor, out=self._rows)
        np.minimum(self._rows, self._most, out=self._rows)
        np.maximum(self._rows, self._least, out=self._rows)
        return self._rows_tensor if slots is None else self._rows_tensor[slots]

    def _lay(self, leaf: Leaf, slots: int) -> None:
        """Amounts are written where they are read; what an encoder reads lies apart."""
        encoder = self._encoder.leaf_encoder(leaf.path)
        columns = self._encoder.columns.observation[leaf.path]
        if isinstance(encoder, VectorEncoder):
            rows = self._raw[:, columns].reshape(slots, *leaf.shape)
            assert np.shares_memory(rows, self._raw) or not rows.size
        else:
            rows = np.zeros((slots, *leaf.shape), leaf.dtype)
            self._encoded.append((encoder, torch.from_numpy(rows), columns))
        self._observation[leaf.path] = rows

    def _tell(self) -> None:
        """Encode the instructions that are new, or have been followed further."""
        slots = np.flatnonzero(~self._is_told)
        instruction, progress = (
            torch.from_numpy(part[slots]) for part in (self._instruction, self._progress[:, None])
        )
        told = self._encoder.instruction(instruction, progress)[:, 0]
        self._raw[slots, self._encoder.columns.instruction] = told.numpy()
        self._is_told[slots] = True

    def _vectors(self) -> NDArray[np.float32]:
        """`[slots, size]` of the actions before."""
        if self._options is not None:
            return self._options.take(self._action - self._codec.start[0], 0)
        stored = torch.from_numpy(self._action)
        return np.asarray(self._codec.vector(self._codec.encode(stored)).numpy())

"""From the words of an instruction's goals to features."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.schemas.dataset_schema import DatasetSchema


class InstructionEncoder(nn.Module):
    """Goal words to features: the goals that are left, in order, the current one first.

    Completed goals are masked, so that what is left to do looks the same however it was reached.
    """

    word_ids: Tensor

    def __init__(
        self, schema: DatasetSchema, width: int, visibility: Literal["full", "current"] = "full"
    ) -> None:
        super().__init__()
        vocabulary = schema.tasks[0].vocabulary
        self._goals = max(task.max_instruction_length for task in schema.tasks)
        self._width = width
        if vocabulary is None or not self._goals:
            self._goals = 0
            return
        self._visible = 1 if visibility == "current" else self._goals
        table = torch.from_numpy(vocabulary.word_ids)
        padded = torch.cat([torch.zeros_like(table[:1]), table])
        self.register_buffer("word_ids", padded, persistent=False)
        self.words = nn.Embedding(len(vocabulary.words) + 1, 16, padding_idx=0)
        self.goal = nn.Linear(16 * table.shape[1], 32)
        self.project = nn.Linear(32 * self._visible, width)

    @property
    def is_empty(self) -> bool:
        """Whether there never is a goal: all features are zero then."""
        return not self._goals

    def forward(
        self, instruction: Tensor, progress: Tensor, sequence: Tensor | None = None
    ) -> Tensor:
        """`[..., features]` of every step.

        Args:
            instruction: `[batch, goals]`: goal ids + 1, then zeros.
            progress: `[batch, time]`, or `[rows]` of packed sequences.
            sequence: `[rows]`: the instruction of each packed row; None where they lie side by side.
        """
        if not self._goals:
            return torch.zeros(*progress.shape, self._width, device=progress.device)
        # [batch, goals, words, 16] -> [batch, goals, 32]
        goals = F.leaky_relu(self.goal(self.words(self.word_ids[instruction]).flatten(-2)))
        goals = goals * (instruction > 0)[..., None]
        padded = torch.cat([goals, torch.zeros_like(goals)], 1)
        places = progress.clamp(max=self._goals)[..., None] + torch.arange(
            self._visible, device=progress.device
        )
        if sequence is None:
            sequence = torch.arange(len(progress), device=progress.device)[:, None]
        left: Tensor = self.project(padded[sequence[..., None], places].flatten(-2))
        return left

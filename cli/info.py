"""`retold info`: what a dataset holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class InfoConfig:
    """What `retold info` is asked."""

    dataset: Path
    """Dataset to read. It is never written to."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The summary of a dataset."""

    dataset: str
    summary: Mapping[str, Any]


def describe_dataset(config: InfoConfig) -> DatasetInfo:
    """The summary of the dataset's newest snapshot."""
    from retold.dataset.summary import summarize

    return DatasetInfo(dataset=str(config.dataset), summary=summarize(config.dataset))

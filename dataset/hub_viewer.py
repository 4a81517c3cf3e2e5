"""`viewer/episodes-*.parquet`: the live episodes of a snapshot, as the Hub's viewer shows them."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.filter import COLUMNS
from retold.dataset.reader import DatasetReader
from retold.dataset.table import TABLE_SCHEMA
from retold.schemas.vocabulary import GoalVocabulary

VIEWER_FOLDER = "viewer"
_FILE_ROWS = 50_000
_GROUP_ROWS = 10_000


def viewer_files(reader: DatasetReader) -> dict[str, bytes]:
    """Parquet files by path: one row an episode, with its task's name and instruction in words.

    Equal snapshots give equal bytes within one version of pyarrow.
    """
    table = _make_table(reader)
    files = {}
    for number, first in enumerate(range(0, max(1, len(table)), _FILE_ROWS)):
        buffer = pa.BufferOutputStream()
        pq.write_table(
            table.slice(first, _FILE_ROWS),
            buffer,
            compression="zstd",
            row_group_size=_GROUP_ROWS,
        )
        path = f"{VIEWER_FOLDER}/episodes-{number:05d}.parquet"
        files[path] = buffer.getvalue().to_pybytes()
    return files


def _make_table(reader: DatasetReader) -> pa.Table:
    table = reader.table.select([name for name in TABLE_SCHEMA.names if name in COLUMNS])
    tasks = [
        listed
        for entry in reader.shards
        for listed in [reader.shard_reader(entry.shard_id).schema.tasks] * entry.episodes
    ]
    chosen = [of[number] for of, number in zip(tasks, table["task"].to_pylist(), strict=True)]
    words = [
        spell_instruction(task.vocabulary, goals or ())
        for task, goals in zip(chosen, table["instruction"].to_pylist(), strict=True)
    ]
    names = [task.name for task in chosen]
    table = table.append_column("task_name", pa.array(names, pa.string()))
    return table.append_column("instruction_words", pa.array(words, pa.string()))


def spell_instruction(vocabulary: GoalVocabulary | None, goals: Sequence[int]) -> str | None:
    """An instruction in words; None for tasks without goals."""
    if vocabulary is None:
        return None
    return ", then ".join(" ".join(vocabulary.goals[goal]) for goal in goals)

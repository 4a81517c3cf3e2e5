"""Tables as strangers keep them, and their import by a mapping of columns."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.import_command import ImportConfig, ImportResult, import_dataset

STEPS = {
    "observation": "obs",
    "action": "act",
    "reward": "r",
    "terminated": "done",
    "episode": "ep",
    "step": "t",
}


def write_mapping(folder: Path, **fields: Any) -> Path:
    """A TOML file; None leaves a field out."""
    path = folder / "mapping.toml"
    path.write_text("".join(f"{n} = {_toml(v)}\n" for n, v in fields.items() if v is not None))
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_toml(item)}' for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def bring(folder: Path, table: pa.Table | None, **fields: Any) -> ImportResult:
    """Import a table into `folder/d`; `fields` change the mapping."""
    if table is not None:
        pq.write_table(table, folder / "t.parquet", row_group_size=4)
    mapping = write_mapping(folder, **(STEPS | fields))
    return import_dataset(
        ImportConfig(
            format="hf-dataset",
            source=folder / "t.parquet",
            dataset=folder / "d",
            mapping=mapping,
        )
    )


def steps(**changes: Any) -> pa.Table:
    """Episodes `a` of three rows, `b` of two and `c` of one."""
    columns: dict[str, Any] = {
        "ep": ["a"] * 3 + ["b"] * 2 + ["c"],
        "t": [0, 1, 2, 0, 1, 0],
        "obs": [[float(number), -1.0] for number in range(6)],
        "act": [0, 2, 1, 0, 0, 2],
        "r": [0.5, 0.25, 0.1, 1.0, 2.0, 3.0],
        "done": [False, False, True, False, False, True],
        "next": [[float(number), -1.0] for number in (1, 2, 9, 4, 8, 7)],
        "colour": ["red"] * 6,
    }
    columns |= changes
    return pa.table({name: rows for name, rows in columns.items() if rows is not None})


def episodes() -> pa.Table:
    rows: dict[str, list[Any]] = {"id": [], "seen": [], "did": [], "got": [], "won": []}
    for number, length in enumerate((3, 1, 2)):
        rows["id"].append(number)
        rows["seen"].append([[float(t), number] for t in range(length + 1)])
        rows["did"].append([t % 2 for t in range(length)])
        rows["got"].append([float(t) for t in range(length)])
        rows["won"].append(number == 1)
    return pa.table(rows)


EPISODES = {
    "observation": "seen",
    "action": "did",
    "reward": "got",
    "terminated": "won",
    "episode": None,
    "step": None,
}

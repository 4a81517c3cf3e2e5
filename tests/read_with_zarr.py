"""Prints what zarr-python finds in every array below a folder: `python tests/read_with_zarr.py FOLDER`.

It needs zarr alone, so that any version of it, on any Python, can be asked.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr


def read_arrays(folder: Path) -> dict[str, list[Any]]:
    """Type, shape and hash of the values of each array, by its path."""
    found: dict[str, list[Any]] = {}
    for metadata in sorted(folder.rglob("zarr.json")):
        if json.loads(metadata.read_bytes())["node_type"] == "array":
            values = np.asarray(zarr.open_array(metadata.parent, mode="r")[...])
            digest = hashlib.sha256(values.tobytes()).hexdigest()
            name = metadata.parent.relative_to(folder).as_posix()
            found[name] = [values.dtype.str, list(values.shape), digest]
    return found


if __name__ == "__main__":
    print(json.dumps(read_arrays(Path(sys.argv[1])), indent=0, sort_keys=True))
    print(f"zarr {zarr.__version__}, Python {sys.version.split()[0]}", file=sys.stderr)

"""Opening an HDF5 file of trajectories, whichever layout it has."""

from collections.abc import Sequence
from pathlib import Path

import h5py

from retold.dataset.foreign_files import reading
from retold.dataset.hdf5_demos import DemoSource
from retold.dataset.hdf5_flat import FlatSource
from retold.schemas.errors import DatasetError


def open_hdf5(path: Path, skip: Sequence[str] = ()) -> FlatSource | DemoSource:
    """The reader of a file; it stays open until the process ends.

    Args:
        path: the file.
        skip: infos and other columns that are not even looked at.

    Raises:
        DatasetError: there is no file, it is damaged, or it has neither layout.
    """
    if not path.is_file():
        raise DatasetError(f"{path}: there is no such file. Give the path of an HDF5 file.")
    with reading(path, "an HDF5 file"):
        file = h5py.File(path, "r")
        is_demos = isinstance(file.get("data"), h5py.Group) and any(
            name.startswith("demo_") for name in file["data"]
        )
        if not is_demos and "observations" not in file and "actions" not in file:
            found = ", ".join(sorted(file)) or "nothing"
            raise DatasetError(
                f"{path}: it has neither flat columns (observations, actions, rewards, terminals) "
                f"nor demonstrations (data/demo_0 ...), but {found}. Bring it into one of the two."
            )
        return DemoSource(path, file, skip) if is_demos else FlatSource(path, file, skip)

"""Reading `schemas/<sha256>.json`."""

import json

from retold.dataset.paths import DatasetPath, path_inside
from retold.dataset.validation import check_field_paths
from retold.schemas.canonical import sha256_hex
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import FormatError
from retold.schemas.manifest import check_format_version


def read_schema(dataset: DatasetPath, sha256: str) -> DatasetSchema:
    """A schema of a dataset, checked against its name.

    Raises:
        FormatError: it is missing or damaged, or of another format version.
    """
    path = path_inside(dataset, "schemas", f"{sha256}.json")
    try:
        content = path.read_bytes()
        if sha256_hex(content) != sha256:
            raise FormatError(
                f"{path}: it was changed (its hash differs). Restore it from a copy of the dataset."
            )
        fields = json.loads(content)
        check_format_version(str(path), fields["format_version"])
        schema = DatasetSchema.from_json(fields)
    except OSError as error:
        raise FormatError(
            f"{path}: it cannot be read: {error.strerror}. Restore it from a copy of the dataset."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path}: this schema is damaged. Restore it from a copy of the dataset."
        ) from error
    check_field_paths(str(path), schema)
    return schema

"""Values of other formats' metadata (NumPy's included) as plain JSON, and back without loss."""

import base64
import math
from typing import Any

import numpy as np

_NATURAL = (np.bool_, np.int64, np.float64, np.str_)


def pack(value: Any) -> Any:
    """A value as JSON can hold it; arrays, bytes and non-finite numbers become tagged objects."""
    if isinstance(value, _NATURAL):
        value = value.item()
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OUS":
            # Rows of text: items are `str` or `bytes`.
            return {"$strings": [list(value.shape), [pack(item) for item in value.ravel()]]}
        if value.dtype.kind not in "biufc":
            raise TypeError(f"a value of dtype {value.dtype} cannot be kept")
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"$array": [value.dtype.str, list(value.shape), content]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(value)}
    if isinstance(value, dict):
        return {str(key): pack(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [pack(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a value of type {type(value).__name__} cannot be kept")


def unpack(value: Any) -> Any:
    """The inverse of `pack`."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$array": [dtype, shape, content]}:
            array = np.frombuffer(base64.b64decode(content), dtype).reshape(shape).copy()
            return array[()] if array.ndim == 0 else array
        case {"$strings": [shape, items]}:
            strings = np.empty(len(items), object)
            strings[:] = [unpack(item) for item in items]
            return strings.reshape(shape)
        case {"$bytes": content}:
            return base64.b64decode(content)
        case {"$number": text}:
            return float(text)
        case _:
            return {key: unpack(item) for key, item in value.items()}

"""One way to write JSON, so that equal content has equal bytes and equal hashes."""

import hashlib
import json
import math
from typing import Any


def encode_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, fixed separators and a final newline.

    Non-finite numbers become the strings "NaN", "Infinity" and "-Infinity" (format rule 13);
    `float()` reads all three back.
    """
    text = json.dumps(
        _finite(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode() + b"\n"


def sha256_hex(content: bytes) -> str:
    """The 64 hex digits of the content's SHA-256."""
    return hashlib.sha256(content).hexdigest()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

"""One way to write JSON, so that equal content has equal bytes and equal hashes."""

import hashlib
import json
import math
import re
from typing import Any

_ZEROS = "0" * 64


def encode_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, fixed separators and a final newline.

    Non-finite numbers become the strings "NaN", "Infinity" and "-Infinity" (format rule 13);
    `float()` reads all three back.
    """
    text = json.dumps(
        _finite(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode() + b"\n"


def seal_json(content: dict[str, Any]) -> bytes:
    """Canonical JSON that vouches for itself.

    `content_sha256` is added: the hash of these bytes with its own 64 digits zeroed. No key that
    sorts before it may hold text that a stranger chose unescaped, which JSON strings never are.
    """
    zeroed = encode_json({**content, "content_sha256": _ZEROS})
    return _reseal(zeroed, _ZEROS, sha256_hex(zeroed))


def is_sealed(encoded: bytes, seal: str) -> bool:
    """Whether a file whose `content_sha256` is `seal` is what was written."""
    return sha256_hex(_reseal(encoded, seal, _ZEROS)) == seal


def sha256_hex(content: bytes) -> str:
    """The 64 hex digits of the content's SHA-256."""
    return hashlib.sha256(content).hexdigest()


def require_hex(value: Any, digits: int) -> str:
    """The value, if it is a string of exactly so many lower-case hex digits.

    Ids and hashes become parts of paths, so nothing else may pass for one.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, str) or re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is None:
        raise ValueError(f"{value!r} is not {digits} hex digits")
    return value


def require_count(value: Any) -> int:
    """The value, if it is a whole number of at least 0.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a whole number of at least 0")
    return value


def _reseal(encoded: bytes, old: str, new: str) -> bytes:
    return encoded.replace(
        f'"content_sha256":"{old}"'.encode(), f'"content_sha256":"{new}"'.encode(), 1
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

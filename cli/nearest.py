"""The nearest valid name to a mistyped one."""

import difflib
from collections.abc import Iterable


def suggest_nearest(name: str, valid: Iterable[str]) -> str:
    """` Did you mean 'x'?` where a valid name is near, otherwise the empty string."""
    near = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""

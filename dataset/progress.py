"""Saying how far long work has come: one line on a terminal, otherwise a log line now and then."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_LOG_SECONDS = 30.0
_WIDTH = 30


def show_progress(items: Iterable[_T], total: int, noun: str) -> Iterator[_T]:
    """The items, while stderr tells how many of them have come.

    Args:
        items: what is worked through.
        total: how many there are.
        noun: what they are, in the plural.
    """
    is_terminal = sys.stderr.isatty()
    started = said = time.monotonic()
    try:
        for number, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if is_terminal and total > 1:
                bar = "█" * (number * _WIDTH // total)
                left = (now - started) / number * (total - number)
                line = f"\r{bar:{_WIDTH}} {number:,} of {total:,} {noun}, {left:.0f} s left "
                print(line, end="", file=sys.stderr, flush=True)
            elif now - said >= _LOG_SECONDS:
                logger.info("%s of %s %s.", f"{number:,}", f"{total:,}", noun)
                said = now
    finally:
        if is_terminal and total > 1:
            print(file=sys.stderr)

"""Frames of any task's environment: as text where it has one, and as pictures."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.schemas.errors import TaskError

_PIXELS = 12
"""Of a cell of a text drawing."""
_COLORS = {
    ".": (240, 240, 235),
    "#": (60, 60, 70),
    "A": (40, 110, 220),
    "*": (230, 170, 30),
    "?": (170, 120, 210),
    "K": (230, 170, 30),
    "D": (150, 90, 50),
    "G": (50, 160, 80),
    "O": (120, 180, 220),
    "+": (190, 190, 180),
    "L": (90, 160, 120),
    "R": (200, 110, 100),
}


def draw_text(environment: gymnasium.Env[Any, Any]) -> str | None:
    """What there is, from above, in letters; None for environments that are no letters."""
    world = _innermost(environment)
    text = getattr(world, "draw_text", None)
    return None if text is None else str(text())


def draw_frame(environment: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    """`[height, width, 3]`: a picture of what there is.

    Raises:
        TaskError: the environment can draw nothing.
    """
    for layer in _layers(environment):
        if hasattr(layer, "draw"):
            return np.asarray(layer.draw(), np.uint8)
    text = draw_text(environment)
    if text is not None:
        return _draw_letters(text)
    frame = environment.render() if environment.render_mode == "rgb_array" else None
    if not isinstance(frame, np.ndarray):
        raise TaskError(
            "The task draws no frames. A `gym/ID` task may: give "
            '`--task-args \'{"make": {"render_mode": "rgb_array"}}\'`.'
        )
    return np.asarray(frame, np.uint8)


def _innermost(environment: gymnasium.Env[Any, Any]) -> Any:
    *_, last = _layers(environment)
    return last


def _layers(environment: Any) -> list[Any]:
    """The environment and all that it wraps; a trial of a world wraps the world."""
    layers = [environment]
    while True:
        inner = getattr(layers[-1], "env", None)
        if inner is None or not isinstance(layers[-1], gymnasium.Wrapper):
            inner = getattr(layers[-1], "world", None)
        if inner is None or inner is layers[-1]:
            return layers
        layers.append(inner)


def _draw_letters(text: str) -> NDArray[np.uint8]:
    """Cells of one color a letter; lines of words are drawn as words."""
    from PIL import Image, ImageDraw

    lines = text.split("\n")
    width = max(_PIXELS * max(map(len, lines)), 160)
    image = Image.new("RGB", (width, (_PIXELS + 2) * len(lines)), (255, 255, 255))
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        top = (_PIXELS + 2) * row if " " in line else _PIXELS * row
        if " " in line:
            draw.text((2, top), line, (30, 30, 30))
            continue
        for column, letter in enumerate(line):
            place = (_PIXELS * column, top, _PIXELS * (column + 1) - 2, top + _PIXELS - 2)
            draw.rectangle(place, _COLORS.get(letter, (200, 200, 200)))
    return np.asarray(image)

"""The half cheetah as a picture, from the simulator's state: no OpenGL is needed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_WIDTH, _HEIGHT = 240, 120
_SCALE = 80.0
"""Pixels of a meter."""
_GROUND = 105


def draw_cheetah(model: Any, data: Any) -> NDArray[np.uint8]:
    """`[120, 240, 3]`: the bodies from the side, marks on the ground a meter apart.

    Args:
        model: MuJoCo's model.
        data: its state.
    """
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (_WIDTH, _HEIGHT), (235, 240, 245))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, _GROUND, _WIDTH, _HEIGHT), (200, 190, 170))
    middle = float(data.qpos[0])
    for meter in range(int(middle) - 3, int(middle) + 4):
        x = _WIDTH / 2 + (meter - middle) * _SCALE
        draw.line((x, _GROUND, x, _HEIGHT), (120, 110, 90), 2)
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] == 0:  # the ground
            continue
        center = data.geom_xpos[geom]
        axis = data.geom_xmat[geom].reshape(3, 3)[:, 2] * model.geom_size[geom][1]
        ends = [_place(center + sign * axis, middle) for sign in (-1, 1)]
        width = max(2, round(2 * model.geom_size[geom][0] * _SCALE))
        draw.line((*ends[0], *ends[1]), (70, 70, 90), width)
    return np.asarray(image)


def _place(point: NDArray[np.float64], middle: float) -> tuple[float, float]:
    return _WIDTH / 2 + (point[0] - middle) * _SCALE, _GROUND - point[2] * _SCALE

"""Crafter 1.8.3, made exactly replayable from (world seed, actions) in any process.

The package as it stands is not: creatures are kept in sets, whose order follows memory addresses and
decides which one disappears, and night noise is drawn from the world's own generator, so that drawing
a frame changes what happens next. Both are repaired here by subclasses; the package is not patched.
"""

from collections import defaultdict
from types import FunctionType, SimpleNamespace
from typing import Any

import crafter
import numpy as np
import opensimplex
from crafter import constants, engine, objects, worldgen
from numpy.typing import NDArray
from opensimplex import internals

AREA = (64, 64)
MAP_SHAPE = (9, 7)
"""Cells of the map that the player sees, (x, y)."""
MAP_IDS = 19
"""0 outside, 1-12 materials, 13-18 player, cow, zombie, skeleton, arrow, plant."""

_CREATURES = (
    objects.Player,
    objects.Cow,
    objects.Zombie,
    objects.Skeleton,
    objects.Arrow,
    objects.Plant,
)
_NOISE_STREAM = 0x6E6967_6874
_CHUNK = 12
"""Sides of the squares that the numbers of creatures are balanced in."""
_BALANCE_STEPS = 10


class _OrderedSet(dict[Any, None]):
    """As much of a set as the world uses, in order of insertion."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]


class _OrderedWorld(engine.World):  # type: ignore[misc]
    """A world whose creatures have an order that does not depend on memory addresses."""

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed=seed)
        self._chunks: defaultdict[Any, _OrderedSet] = defaultdict(_OrderedSet)


class _QuietView(engine.LocalView):  # type: ignore[misc]
    """A view whose night noise does not draw from the world's generator."""

    noise_seed = (0, 0)

    def _noise(self, canvas: NDArray[Any], amount: float, stddev: float) -> NDArray[Any]:
        rng = np.random.default_rng([_NOISE_STREAM, *self.noise_seed])
        noise = rng.uniform(32, 127, canvas.shape[:2])[..., None]
        mask = amount * self._vignette(canvas.shape, stddev)[..., None]
        shaded: NDArray[Any] = (1 - mask) * canvas + mask * noise
        return shaded


class CrafterGame(crafter.Env):  # type: ignore[misc]
    """The game itself: `start` makes a world, `advance` plays one action, nothing is drawn."""

    def __init__(self) -> None:
        super().__init__(area=AREA, reward=False, length=None, seed=0)
        self._world = _OrderedWorld(AREA, constants.materials, (_CHUNK, _CHUNK))
        rows = int(np.ceil(len(constants.items) / self._view[0]))
        self._local_view = _QuietView(
            self._world, self._textures, [self._view[0], self._view[1] - rows]
        )
        self._reach = 2 * int(max(self._view))
        self._world_seed = 0

    def start(self, seed: int) -> None:
        """Make the world of a seed, the one that the package makes from the same seed."""
        self._world_seed = seed
        self._step = 0
        self._world.reset(seed=seed)
        self._update_time()
        center = (AREA[0] // 2, AREA[1] // 2)
        self._player = objects.Player(self._world, center)
        self._world.add(self._player)
        _generate_world(self._world, self._player)

    def advance(self, action: int) -> None:
        """Play one action: what the package's `step` does to the world, and nothing else of it."""
        self._step += 1
        self._update_time()
        player = self._player
        player.action = constants.actions[action]
        place = None
        for creature in self._world.objects:
            if player.pos is not place:  # every move makes a new array
                place = player.pos
                x, y = place.tolist()
            there = creature.pos.tolist()
            if abs(there[0] - x) + abs(there[1] - y) < self._reach:
                creature.update()
        if self._step % _BALANCE_STEPS == 0:
            self._spaces: dict[str, list[list[int]]] = {}
            for chunk, creatures in self._world.chunks.items():
                self._balance_chunk(chunk, creatures)

    def _balance_object(
        self, chunk: Any, creatures: Any, kind: Any, material: str, *rest: Any
    ) -> None:
        """As the package does, which draws and changes nothing while the number is in bounds."""
        number = sum(isinstance(creature, kind) for creature in creatures)
        least, most = rest[-1](number, self._space(chunk, material))
        if number < int(least) or number > int(most):
            super()._balance_object(chunk, creatures, kind, material, *rest)

    def _space(self, chunk: tuple[int, int, int, int], material: str) -> int:
        """Cells of a material in a chunk; counted for all chunks when one asks."""
        if material not in self._spaces:
            is_there = self._world.mask(0, AREA[0], 0, AREA[1], material)
            starts = np.arange(0, AREA[0], _CHUNK)
            rows = np.add.reduceat(is_there, starts, axis=0, dtype=np.int64)
            self._spaces[material] = np.add.reduceat(rows, starts, axis=1).tolist()
        return self._spaces[material][chunk[0] // _CHUNK][chunk[2] // _CHUNK]

    def draw(self) -> NDArray[np.uint8]:
        """`[64, 64, 3]`: the frame. Drawing changes nothing in the world."""
        self._local_view.noise_seed = (self._world_seed, self._step)
        frame: NDArray[np.uint8] = self.render()
        return np.ascontiguousarray(frame)

    @property
    def is_dead(self) -> bool:
        """Whether the player has no health left."""
        return bool(self._player.health <= 0)

    @property
    def achievements(self) -> dict[str, int]:
        """How often each achievement was done."""
        counts: dict[str, int] = self._player.achievements
        return counts

    @property
    def position(self) -> tuple[int, int]:
        """The player's cell (x, y)."""
        x, y = self._player.pos.tolist()
        return x, y

    @property
    def facing(self) -> tuple[int, int]:
        """The direction that the player looks in (x, y)."""
        return int(self._player.facing[0]), int(self._player.facing[1])

    @property
    def inventory(self) -> list[int]:
        """Counts of the 16 items, health first."""
        return list(self._player.inventory.values())

    @property
    def daylight(self) -> float:
        """1 by day, towards 0 at night."""
        return float(self._world.daylight)

    @property
    def is_sleeping(self) -> bool:
        """Whether every action becomes sleep."""
        return bool(self._player.sleeping)

    def local_map(self) -> NDArray[np.uint8]:
        """`[9, 7]`: ids of what the player sees, see `MAP_IDS`; 0 outside the world."""
        (x, y), (width, height) = self.position, MAP_SHAPE
        left, top = x - width // 2, y - height // 2
        seen = np.zeros(MAP_SHAPE, np.uint8)
        x0, y0 = max(0, left), max(0, top)
        x1, y1 = min(AREA[0], left + width), min(AREA[1], top + height)
        inside = seen[x0 - left : x1 - left, y0 - top : y1 - top]
        inside[:] = self._world._mat_map[x0:x1, y0:y1]
        numbers = self._world._obj_map[x0:x1, y0:y1]
        for place in numbers.ravel().nonzero()[0].tolist():
            creature = self._world._objects[numbers.item(place)]
            inside[divmod(place, y1 - y0)] = _CREATURE_IDS[type(creature)]
        return seen


_CREATURE_IDS = {kind: MAP_IDS - len(_CREATURES) + i for i, kind in enumerate(_CREATURES)}


def _copy_function(function: Any, names: dict[str, Any]) -> Any:
    """The same code looking its global names up elsewhere: faster parts without patching a module."""
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _make_fast_simplex() -> Any:
    """OpenSimplex with Python lists for tables: the same numbers, five times faster.

    It reads its tables one element at a time, which lists do far faster than arrays. With numba its
    functions are compiled and want arrays: then it is fast already.
    """
    if not isinstance(internals._noise3, FunctionType):
        return opensimplex.OpenSimplex
    names = dict(vars(internals))
    names["GRADIENTS3"] = [float(value) for value in internals.GRADIENTS3]
    names["_extrapolate3"] = _copy_function(internals._extrapolate3, names)
    noise3 = _copy_function(internals._noise3, names)

    class FastSimplex(opensimplex.OpenSimplex):  # type: ignore[misc]
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self._perm: Any = self._perm.tolist()
            self._perm_grad_index3: Any = self._perm_grad_index3.tolist()

        def noise3(self, x: float, y: float, z: float) -> float:
            value: float = noise3(x, y, z, self._perm, self._perm_grad_index3)
            return value

    return FastSimplex


_generate_world = _copy_function(
    worldgen.generate_world,
    {**vars(worldgen), "opensimplex": SimpleNamespace(OpenSimplex=_make_fast_simplex())},
)

"""Crafter with instructions over its achievements and over places to travel to."""

from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.tasks.crafter_goals import ACHIEVEMENTS, VOCABULARY, draw_instruction, travel_goal
from retold.tasks.crafter_world import AREA, MAP_IDS, MAP_SHAPE, CrafterGame
from retold.tasks.world import World

ACTIONS = 17
ITEMS = 16
_LETTERS = " ~.#_:T^kidtfACZS>p"


class Crafter(World):
    """Death ends the world; the step limit only cuts the episode.

    Symbols are a Dict: `local_map` `[9, 7]` of ids, `inventory` `[16]`, `facing` `[2]`,
    `position` `[2]`, `daylight` `[1]` and `sleeping` `[1]`; nothing is drawn. Pixels are
    `[64, 64, 3]`.
    """

    vocabulary = VOCABULARY

    def __init__(
        self,
        observation: Literal["symbols", "pixels"],
        preset: Literal["easy", "full", "tech-tree", "mixed"],
        goals: int,
        limit: int,
    ) -> None:
        self.observation_space = _SYMBOLS if observation == "symbols" else _PIXELS
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)
        self.world_seed = 0
        self._is_symbols = observation == "symbols"
        self._preset = preset
        self._goals = goals
        self._limit = limit
        self._game = CrafterGame()
        self._step = 0
        self._counts: dict[str, int] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation of the world of `seed`."""
        super().reset(seed=seed)
        self.world_seed = seed if seed is not None else int(self.np_random.integers(2**30))
        self._game.start(self.world_seed)
        self._step = 0
        self._counts = dict(self._game.achievements)
        place = travel_goal(self._game.position)
        return self._observe(), {"initial_goals": () if place is None else (place,)}

    def step(self, action: np.int64 | int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one of the 17 actions."""
        self._game.advance(int(action))
        self._step += 1
        counts = self._game.achievements
        events = []
        if counts != self._counts:
            events = [ACHIEVEMENTS[name] for name, n in counts.items() if n > self._counts[name]]
            self._counts = dict(counts)
        if (place := travel_goal(self._game.position)) is not None:
            events.append(place)
        is_dead = self._game.is_dead
        is_cut = self._step >= self._limit and not is_dead
        return self._observe(), 0.0, is_dead, is_cut, {"events": tuple(sorted(events))}

    def draw_instruction(self, rng: np.random.Generator) -> tuple[int, ...]:
        """1 to K goals of the preset."""
        return draw_instruction(self._preset, self._goals, self._game.position, rng)

    def draw_text(self) -> str:
        """The map that the player sees, a letter a cell: `A` the player, `.` grass, `T` trees."""
        cells = self._game.local_map()
        return "\n".join("".join(_LETTERS[cell] for cell in row) for row in cells.T)

    def draw(self) -> NDArray[np.uint8]:
        """`[64, 64, 3]`: what the player sees."""
        return self._game.draw()

    def _observe(self) -> Any:
        game = self._game
        if not self._is_symbols:
            return game.draw()
        return {
            "daylight": np.array([game.daylight], np.float32),
            "facing": np.array(game.facing, np.int8),
            "inventory": np.array(game.inventory, np.uint8),
            "local_map": game.local_map(),
            "position": np.array(game.position, np.uint8),
            "sleeping": np.array([game.is_sleeping], np.uint8),
        }


_PIXELS = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
_SYMBOLS = gymnasium.spaces.Dict(
    {
        "daylight": gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32),
        "facing": gymnasium.spaces.Box(-1, 1, (2,), np.int8),
        "inventory": gymnasium.spaces.Box(0, 9, (ITEMS,), np.uint8),
        "local_map": gymnasium.spaces.Box(0, MAP_IDS - 1, MAP_SHAPE, np.uint8),
        "position": gymnasium.spaces.Box(0, AREA[0] - 1, (2,), np.uint8),
        "sleeping": gymnasium.spaces.Box(0, 1, (1,), np.uint8),
    }
)


def render_episode(seed: int, actions: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`[time + 1, 64, 64, 3]`: the frames of an episode recorded as symbols, by replaying it.

    Args:
        seed: what its world was made from.
        actions: `[time]`.
    """
    game = CrafterGame()
    game.start(seed)
    frames = [game.draw()]
    for action in actions:
        game.advance(int(action))
        frames.append(game.draw())
    return np.stack(frames)

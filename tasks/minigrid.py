"""Minigrid's and BabyAI's environments as tasks `minigrid/ID`, e.g. `minigrid/BabyAI-GoToLocal-v0`.

Observations hold the package's own numbers; rewards are its own. The mission is words, which a policy
sees as numbers in `WORDS`, or the text itself.
"""

import contextlib
import importlib
import io
import re
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_errors
from gymnasium import spaces
from numpy.typing import NDArray

from retold.schemas.errors import TaskError
from retold.tasks.definition import Argument, Arguments, Task, TaskFamily

_SENTENCES = (
    "get a go fetch you must pick up the red green blue purple yellow grey ball box key door",
    "object in front of behind on your left right open put near next to and then after",
    "goal square avoid lava find opening reach traverse rooms room maze matching at end hallway",
    "from unlock use do",
)
WORDS = ("", *sorted({word for sentence in _SENTENCES for word in sentence.split()}))
"""All words of missions by their number; the first stands after a mission's end."""

_MOST_WORDS = 24
_MOST_BABYAI_WORDS = 80
"""Four deeds of 17 words each, and the words between them."""
_TEXT_BYTES = 512
_OBJECTS, _COLORS, _STATES = 11, 6, 4
"""Ids of a seen cell's object, color and state; as a state the agent has its direction."""
_NAVIGATIONS = {"action": 2, "and": 4, "seq": 8}
"""Most ways to go in a BabyAI mission of a kind, each of which adds to the step limit."""


class Minigrid(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Missions as words or text; a reward at the end is a success."""

    def __init__(self, environment: gymnasium.Env[Any, Any], mission: str, words: int) -> None:
        super().__init__(environment)
        image = environment.observation_space["image"]  # type: ignore[index]
        ids = np.broadcast_to(np.array([_OBJECTS, _COLORS, _STATES]), image.shape)
        self._words = words if mission == "words" else 0
        self.observation_space = spaces.Dict(
            {
                "direction": spaces.Discrete(4),
                "image": spaces.MultiDiscrete(ids, dtype=np.uint8),
                "mission": spaces.MultiDiscrete([len(WORDS)] * words, dtype=np.uint8)
                if self._words
                else spaces.Text(_TEXT_BYTES, min_length=0, charset=_CHARACTERS),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The first observation of the world of `seed`."""
        # BabyAI prints every world that it throws away.
        with contextlib.redirect_stdout(io.StringIO()):
            observation, info = self.env.reset(seed=seed, options=options)
        self._mission = self._read(observation["mission"])
        return self._see(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """One transition."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "is_success": bool(terminated) and float(reward) > 0}
        return self._see(observation), float(reward), terminated, truncated, info

    def draw(self) -> NDArray[np.uint8]:
        """`[height, width, 3]`: the grid from above, what is seen lit up."""
        frame: NDArray[np.uint8] = self.env.unwrapped.get_frame(tile_size=16)  # type: ignore[attr-defined]
        return frame

    def _see(self, observation: dict[str, Any]) -> dict[str, Any]:
        return {
            "direction": int(observation["direction"]),
            "image": observation["image"],
            "mission": self._mission,
        }

    def _read(self, mission: str) -> NDArray[np.uint8] | str:
        """A mission of an episode; it never changes within one."""
        return read_mission(mission, self._words) if self._words else mission


_CHARACTERS = "".join(sorted({*"".join(WORDS), " ", ","}))


def read_mission(mission: str, words: int) -> NDArray[np.uint8]:
    """`[words]`: numbers of a mission's words in `WORDS`, then zeros; commas are left out.

    Raises:
        ValueError: a word is unknown, or there are too many.
    """
    said = re.findall(r"[a-z]+", mission.lower())
    unknown = sorted({word for word in said if word not in WORDS})
    if unknown or len(said) > words:
        raise ValueError(
            f"the mission {mission!r} holds unknown words {unknown} or more than {words} of them"
        )
    numbers = [WORDS.index(word) for word in said]
    return np.array(numbers + [0] * (words - len(said)), np.uint8)


def member_ids() -> tuple[str, ...]:
    """Every id that the package registers and that needs no other package; none without it."""
    try:
        importlib.import_module("minigrid")
    except ImportError:
        return ()
    ids = (i for i in gymnasium.registry if i.startswith(("MiniGrid-", "BabyAI-")))
    return tuple(sorted(i for i in ids if "WFC" not in i))


def find_environment(environment_id: str) -> Task | None:
    """The task of an id; without the package, of any id that could be one."""
    is_known = environment_id in member_ids() if member_ids() else True
    if not is_known or not environment_id.startswith(("MiniGrid-", "BabyAI-")):
        return None
    return Task(
        name=f"minigrid/{environment_id}",
        sentence=f"Minigrid's {environment_id}: do what the mission says.",
        arguments={
            "limit": Argument(0, help="Steps after which an episode is cut; 0: the package's own."),
            "mission": Argument(
                "words", choices=("words", "text"), help="Numbers of words, or the text itself."
            ),
        },
        limit_is="truncation",
        horizon=lambda arguments: arguments["limit"] or _own_limit(environment_id),
        make=lambda arguments: _make(environment_id, arguments),
        packages=("minigrid", "gymnasium"),
        extra="minigrid",
    )


def _make(environment_id: str, arguments: Arguments) -> gymnasium.Env[Any, Any]:
    limit = arguments["limit"] or _own_limit(environment_id)
    words = _MOST_BABYAI_WORDS if environment_id.startswith("BabyAI") else _MOST_WORDS
    limited = gymnasium.wrappers.TimeLimit(_make_bare(environment_id), limit)
    return Minigrid(limited, arguments["mission"], words)


def _make_bare(environment_id: str) -> gymnasium.Env[Any, Any]:
    importlib.import_module("minigrid")
    try:
        return gymnasium.make(environment_id, disable_env_checker=True)
    except gymnasium_errors.Error as error:
        raise TaskError(
            f"Task minigrid/{environment_id}: the package cannot make it: {error}."
        ) from error


@cache
def _own_limit(environment_id: str) -> int:
    """Most steps of any episode; those of BabyAI depend on the mission."""
    try:
        world: Any = _make_bare(environment_id).unwrapped
    except ImportError as error:
        raise TaskError(
            f"Task minigrid/{environment_id} needs the package {error.name!r}. Install it with "
            f"`pip install 'retold[minigrid]'`."
        ) from error
    if world.max_steps:
        return int(world.max_steps)
    ways = max(_NAVIGATIONS[kind] for kind in getattr(world, "instr_kinds", ("action",)))
    return int(ways * world.room_size**2 * world.num_rows * world.num_cols)


MINIGRID = TaskFamily(
    name="minigrid",
    sentence="Minigrid's and BabyAI's grid worlds with missions in words, by their ids.",
    members=member_ids,
    find=find_environment,
)

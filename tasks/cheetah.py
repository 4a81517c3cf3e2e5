"""MuJoCo's half cheetah with a hidden target velocity, and with a hidden wind as well.

The first is the meta-learning task of MAML in the form that AMAGO evaluates, the second LILAC's.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.tasks.definition import Argument, Arguments, ReferenceReturns, Task
from retold.tasks.facts_wrapper import transition_facts

FASTEST = 3.0
"""Target velocities are uniform from 0 to this, in m/s."""
STRONGEST = 20.0
"""Winds are uniform from 0 to this, in N on the torso, forward."""
_COST = 0.05
"""Of the squared action."""


class Cheetah(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The reward is `-|velocity - target| - 0.05 |action|^2`; observations are the simulator's.

    Target and wind are constant in an episode, new in each, and not observed.
    """

    def __init__(self, limit: int, has_wind: bool) -> None:
        simulator = _make_simulator()
        super().__init__(simulator)
        self._simulator = simulator
        self._limit = limit
        self._has_wind = has_wind
        self._torso = simulator.model.body("torso").id
        self._step = 0
        self.target = 0.0
        """Hidden, m/s."""
        self.wind = 0.0
        """Hidden, N."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """The cheetah at rest, but for small noise."""
        observation, _ = self.env.reset(seed=seed)
        rng = self.np_random if seed is None else np.random.default_rng([seed, 1])
        self.target = float(rng.uniform(0.0, FASTEST))
        self.wind = float(rng.uniform(0.0, STRONGEST)) if self._has_wind else 0.0
        # A reset clears applied forces.
        self._simulator.data.xfrc_applied[self._torso, 0] = self.wind
        self._step = 0
        return observation, {"instruction": (), "initial_goals": ()}

    def step(self, action: Any) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Apply torques for 0.05 seconds."""
        observation, _, _, _, facts = self.env.step(action)
        cost = _COST * float(np.square(action).sum())
        reward = -abs(float(facts["x_velocity"]) - self.target) - cost
        self._step += 1
        is_cut = self._step == self._limit
        return observation, reward, False, is_cut, transition_facts(False)

    def draw(self) -> NDArray[np.uint8]:
        """`[height, width, 3]`: the bodies from the side, drawn without OpenGL."""
        from retold.tasks.cheetah_drawing import draw_cheetah

        return draw_cheetah(self._simulator.model, self._simulator.data)


def _make_simulator() -> Any:
    """Gymnasium's HalfCheetah-v5, without MuJoCo's remark on its model (and the log file of it)."""
    import mujoco
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        return HalfCheetahEnv()
    finally:
        mujoco.set_mju_user_warning(before)


def _velocity_returns(arguments: Arguments) -> ReferenceReturns:
    known = {200: -345.0, 1000: -1750.0}
    return ReferenceReturns(random=known.get(arguments["limit"]))


def _wind_returns(arguments: Arguments) -> ReferenceReturns:
    known = {200: -280.0, 1000: -1480.0}
    return ReferenceReturns(random=known.get(arguments["limit"]))


_ARGUMENTS = {"limit": Argument(1000, minimum=1, help="Steps after which an episode is cut.")}

CHEETAH_VELOCITY = Task(
    name="cheetah-velocity",
    sentence="Run at a hidden velocity.",
    arguments=_ARGUMENTS,
    limit_is="truncation",
    horizon=lambda arguments: int(arguments["limit"]),
    make=lambda arguments: Cheetah(arguments["limit"], has_wind=False),
    returns=_velocity_returns,
    packages=("mujoco", "gymnasium"),
    gives_facts=True,
)

CHEETAH_WIND = Task(
    name="cheetah-wind",
    sentence="Run at a hidden velocity in a hidden wind.",
    arguments=_ARGUMENTS,
    limit_is="truncation",
    horizon=lambda arguments: int(arguments["limit"]),
    make=lambda arguments: Cheetah(arguments["limit"], has_wind=True),
    returns=_wind_returns,
    packages=("mujoco", "gymnasium"),
    gives_facts=True,
)

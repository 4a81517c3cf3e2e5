"""Any Gymnasium environment as one whose infos say what a transition did."""

from typing import Any

import gymnasium


class FactsWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """For environments without goals and instructions; observations and rewards pass unchanged.

    Where both flags are set, the world has ended: `truncated` is dropped. `success` is what the
    environment's info calls `is_success` or `success`, if anything.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation; an instruction among the options has no meaning here."""
        rest = {name: value for name, value in (options or {}).items() if name != "instruction"}
        observation, _ = self.env.reset(seed=seed, options=rest or None)
        return observation, {"instruction": (), "initial_goals": ()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One transition, its info replaced by the facts."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        facts = transition_facts(bool(terminated), success=_find_success(info))
        return (
            observation,
            reward,
            bool(terminated),
            bool(truncated) and not terminated,
            facts,
        )


def transition_facts(
    terminated: bool, *, reset: bool = False, success: bool | None = None
) -> dict[str, Any]:
    """What a transition did in a task without goals."""
    return {
        "events": (),
        "environment_terminated": terminated,
        "reset": reset,
        "success": success,
    }


def _find_success(info: dict[str, Any]) -> bool | None:
    found = info.get("is_success", info.get("success"))
    return None if found is None else bool(found)

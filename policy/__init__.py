"""Networks, acting and rollouts; reads and writes policy snapshots (`policy.json`, `policy.safetensors`)."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retold.policy.agent import Agent


def load(
    path: Path | str,
    *,
    environments: int = 1,
    seed: int = 0,
    target_return: float | None = None,
) -> "Agent":
    """A trained policy that acts in any loop over environments; see `retold.policy.agent`.

    Args:
        path: a snapshot's folder, or a run of `retold train` (its newest policy is taken).
        environments: episodes at a time.
        seed: of drawn actions.
        target_return: what a `dt` policy is asked for; None: what the policy keeps.

    Raises:
        PolicyError: there is no policy, or it is damaged.
    """
    from retold.policy.agent import Agent

    return Agent(Path(path), environments=environments, seed=seed, target_return=target_return)

"""The folder of a training run: its configuration, and what may be resumed."""

import json

from retold.schemas.canonical import encode_json
from retold.schemas.errors import RunError
from retold.train.config import TrainConfig, changed_fields


def check_run(config: TrainConfig) -> None:
    """Check that there is no run yet, or that this is the run to go on with.

    Raises:
        RunError: the run exists and `resume` is not given, or was made with other settings.
    """
    path = config.run / "config.json"
    if path.exists():
        if not config.resume:
            raise RunError(
                f"{config.run}: the run exists already. Give --resume to go on with it, or name "
                f"another run."
            )
        try:
            stored = json.loads(path.read_bytes())
        except ValueError as error:
            raise RunError(f"{path}: this is no configuration. Name another run.") from error
        if "encoder" not in stored:
            raise RunError(
                f"{path}: the run was made before policy_version 2, by a plain Transformer of "
                f"which training cannot go on. Its policies act and are evaluated as before; to "
                f"learn on, name another run with the same --data."
            )
        if changed := changed_fields(stored, config):
            name = changed[0]
            raise RunError(
                f"{path}: the run has {name} = {json.dumps(stored.get(name))}, but "
                f"{json.dumps(config.to_json()[name])} is asked for. Restore the value, or name "
                f"another run."
            )


def open_run(config: TrainConfig) -> None:
    """Make the run's folder, or check that this is the run to go on with.

    Raises:
        RunError: as `check_run`, or the folder cannot be written.
    """
    check_run(config)
    path = config.run / "config.json"
    try:
        config.run.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(".config.json")
        aside.write_bytes(encode_json(config.to_json()))
        aside.replace(path)
    except OSError as error:
        raise RunError(
            f"{config.run}: the run cannot be written: {error.strerror}. Name another folder."
        ) from error

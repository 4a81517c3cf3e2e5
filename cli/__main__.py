"""The `retold` command: finds the command, reads its line, runs it, reports."""

import errno
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from retold.cli.commands import COMMANDS, Command
from retold.cli.flags import make_parser, read_command_line
from retold.cli.nearest import suggest_nearest
from retold.schemas.canonical import encode_json
from retold.schemas.errors import RetoldError, UsageError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""
PIPE_CLOSED = 141
"""Exit status after the reader of stdout has gone: 128 + SIGPIPE."""

_CIRCUMSTANCES = {
    errno.EACCES: "Give yourself the right to it, or choose another place.",
    errno.EPERM: "Give yourself the right to it, or choose another place.",
    errno.EROFS: "Choose a place that can be written.",
    errno.ENOSPC: "Make room, then run the same command again.",
    errno.EDQUOT: "Make room, then run the same command again.",
    errno.ENOTDIR: "Choose a path whose parents are folders.",
    errno.ENAMETOOLONG: "Choose a shorter path.",
}
"""What the machine refuses although Retold and its data are fine, and what to do about it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: of the process, unless given.

    Returns:
        The exit status: 0, 1 for data, 2 for usage.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _dispatch(arguments)
    except RetoldError as error:
        return _complain(arguments, str(error), error.exit_status)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _CIRCUMSTANCES:
            raise
        reason = f"{(error.strerror or '').lower()}. {_CIRCUMSTANCES[error.errno]}"
        where = f"{error.filename}: " if error.filename else ""
        return _complain(arguments, where + reason, 1)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _write(_short_help())
    if arguments[0] == "--version":
        return _write(f"retold {version('retold')}")
    name, *rest = arguments
    if name not in COMMANDS:
        raise UsageError(
            f"There is no command {name!r}.{suggest_nearest(name, COMMANDS)} See retold --help."
        )
    command = COMMANDS[name]
    if "-h" in rest or "--help" in rest:
        return _write(make_parser(command.line, command.config_class).format_help().rstrip())
    config, is_json = read_command_line(command.line, command.config_class, rest)
    _configure_logging()
    return _report(command, command.run(config), is_json=is_json)


def _report(command: Command, result: Any, *, is_json: bool) -> int:
    from retold.cli.printing import describe_result, json_values

    text = encode_json(json_values(result)).decode() if is_json else describe_result(result)
    return _write(text.rstrip()) or int(getattr(result, "exit_status", 0))


def _write(text: str) -> int:
    """Prints a result; a reader that has gone is no mistake of ours."""
    if os.environ.get("RANK", "0") != "0":
        return 0  # under torchrun the first process speaks for all
    try:
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return 0


def _complain(arguments: Sequence[str], message: str, status: int) -> int:
    is_command = bool(arguments) and arguments[0] in COMMANDS
    prefix = f"retold {arguments[0]}" if is_command else "retold"
    if os.environ.get("RANK", "0") == "0":  # under torchrun the first process speaks for all
        print(f"{prefix}: {' '.join(message.split())}", file=sys.stderr)
    return status


def _configure_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logger = logging.getLogger("retold")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _short_help() -> str:
    lines = ["Collects experience, retells it, learns from it, and collects again.", ""]
    lines += [f"  retold {name:<11} {c.line.sentence}" for name, c in COMMANDS.items()]
    lines += ["", "`retold COMMAND --help` lists a command's flags. `retold --version` prints it."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

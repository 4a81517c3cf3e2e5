"""A frozen dataclass as a command line: its fields are the flags, their docstrings the help."""

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retold.cli.field_types import (
    FieldType,
    describe_type,
    describe_value,
    optional_inner,
    parse_text,
    parse_toml,
    tuple_item,
)
from retold.cli.nearest import suggest_nearest
from retold.schemas.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ConfigField:
    """One field of a configuration dataclass, as a flag needs it."""

    name: str
    kind: FieldType
    help: str
    default: Any
    """`dataclasses.MISSING` where a value must be given."""

    @property
    def flag(self) -> str:
        """E.g. `--task-args` for `task_args`."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_bool(self) -> bool:
        """Whether the flag has no value but a `--no-` form."""
        return (optional_inner(self.kind) or self.kind) is bool


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What a command's line looks like, besides the fields of its configuration."""

    command: str
    """E.g. `collect`."""
    sentence: str
    """What the command does."""
    example: str
    """A line to copy."""
    positional: tuple[str, ...]
    """Fields given by place instead of by flag, the output last."""
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Repeated fields that belong to another one, value by value: `{"weight": "data"}`."""
    has_config_file: bool = True
    """Whether `--config FILE` gives values that no flag gives."""


@functools.cache
def config_fields(config_class: type) -> tuple[ConfigField, ...]:
    """The fields of a configuration dataclass, its own before inherited ones, with their docstrings."""
    kinds = typing.get_type_hints(config_class)
    own = inspect.get_annotations(config_class)
    help_texts = _field_docstrings(config_class)
    return tuple(
        ConfigField(
            name=field.name,
            kind=kinds[field.name],
            help=help_texts.get(field.name, ""),
            default=_field_default(field),
        )
        for field in sorted(dataclasses.fields(config_class), key=lambda f: f.name not in own)
        if field.init
    )


def make_parser(line: CommandLine, config_class: type) -> argparse.ArgumentParser:
    """The parser of one command. `--json` is there for every command."""
    fields = {field.name: field for field in config_fields(config_class)}
    places = " ".join(_place(fields[name]) for name in line.positional)
    parser = _Parser(
        prog=f"retold {line.command}",
        usage=f"retold {line.command} {places} [flags]",
        description=line.sentence,
        epilog=f"example:\n  {line.example}",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    for name in line.positional:
        field = fields.pop(name)
        parser.add_argument(
            name,
            nargs="?",
            default=argparse.SUPPRESS,
            metavar=name.upper(),
            help=_help_text(field, is_place=True),
        )
    for field in fields.values():
        _add_flag(parser, field)
    if presets := _presets(config_class):
        parser.add_argument(
            "--preset",
            dest="preset",
            metavar="|".join(presets),
            default=None,
            help="Values to begin with; a flag or a key of --config beats them. (default: none)",
        )
    if line.has_config_file:
        parser.add_argument(
            "--config",
            dest="config_file",
            metavar="FILE",
            default=None,
            help="TOML file of these flags, `-` written `_`; a flag beats it. (default: none)",
        )
    parser.add_argument(
        "--json", dest="is_json", action="store_true", help="Print the result as JSON."
    )
    return parser


def read_command_line(
    line: CommandLine, config_class: type, arguments: Sequence[str]
) -> tuple[Any, bool]:
    """The configuration that a command line asks for, and whether it asks for JSON.

    Raises:
        UsageError: something on the line, in the file or among the values is wrong.
    """
    parser = make_parser(line, config_class)
    namespace, rest = parser.parse_known_intermixed_args(arguments, argparse.Namespace(order=()))
    if rest:
        raise UsageError(_describe_rest(line, parser, rest))
    fields = {field.name: field for field in config_fields(config_class)}
    values = _values_of_flags(line, fields, namespace)
    if line.has_config_file and namespace.config_file is not None:
        path = Path(namespace.config_file)
        values = values_from_toml(config_class, read_toml(path), where=str(path)) | values
    if _presets(config_class) and namespace.preset is not None:
        try:
            values = _preset_values(config_class, namespace.preset) | values
        except ValueError as error:
            raise UsageError(f"--preset {error} See retold {line.command} --help.") from None
    for field in fields.values():
        if field.name not in values and field.default is dataclasses.MISSING:
            name = field.name.upper() if field.name in line.positional else field.flag
            raise UsageError(f"{name} is missing. See retold {line.command} --help.")
    return config_class(**values), namespace.is_json


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        UsageError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: the configuration file cannot be read ({reason}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the configuration file is not TOML: {error}.") from None


def values_from_toml(
    config_class: type, content: Mapping[str, Any], *, where: str, managed: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Field values from a TOML table.

    Args:
        config_class: whose fields the keys are.
        content: the table; where the class has presets, `preset` names one that the rest changes.
        where: file (and section) for messages.
        managed: keys that exist but may not be set here, with who sets them.

    Raises:
        UsageError: a key is unknown or a value has the wrong type.
    """
    fields = {field.name: field for field in config_fields(config_class)}
    values = {}
    preset: Mapping[str, Any] = {}
    for key, value in content.items():
        if key == "preset" and _presets(config_class):
            try:
                preset = _preset_values(config_class, value)
            except ValueError as error:
                raise UsageError(f"{where}: 'preset' {error}") from None
            continue
        if key in managed:
            raise UsageError(f"{where}: {key!r} is set by {managed[key]}. Remove it here.")
        if key not in fields:
            valid = [name for name in fields if name not in managed]
            nearest = suggest_nearest(key, valid) or f" Known keys: {', '.join(valid)}."
            raise UsageError(f"{where}: there is no key {key!r}.{nearest}")
        try:
            values[key] = parse_toml(fields[key].kind, value)
        except ValueError as error:
            raise UsageError(f"{where}: {key!r} {error}.") from None
    return {**preset, **values}


def _presets(config_class: type) -> Mapping[str, Mapping[str, Any]]:
    """Named sets of values that a configuration class has."""
    presets: Mapping[str, Mapping[str, Any]] = getattr(config_class, "PRESETS", {})
    return presets


def _preset_values(config_class: type, name: Any) -> dict[str, Any]:
    presets = _presets(config_class)
    if name not in presets:
        nearest = suggest_nearest(str(name), list(presets))
        raise ValueError(f"is {name!r}, which is none of {', '.join(presets)}.{nearest}")
    return dict(presets[name])


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=100)


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print, so that every mistake is reported in one place."""

    def error(self, message: str) -> typing.NoReturn:
        message = re.sub(r"^argument ", "", message)
        raise UsageError(f"{message}. See {self.prog} --help.")


class _Append(argparse.Action):
    """Keeps the order of repeated flags, which says what belongs together."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.order = (*namespace.order, (self.dest, values))


def _add_flag(parser: argparse.ArgumentParser, field: ConfigField) -> None:
    help_text = _help_text(field)
    if field.is_bool:
        parser.add_argument(
            field.flag,
            dest=field.name,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=help_text,
        )
        return
    parser.add_argument(
        field.flag,
        dest=field.name,
        metavar=describe_type(field.kind),
        default=argparse.SUPPRESS,
        action="store" if tuple_item(field.kind) is None else _Append,
        help=help_text,
    )


def _values_of_flags(
    line: CommandLine, fields: Mapping[str, ConfigField], namespace: argparse.Namespace
) -> dict[str, Any]:
    given = {name: value for name, value in vars(namespace).items() if name in fields}
    repeated: dict[str, tuple[str, ...]] = {}
    for name, text in namespace.order:
        repeated[name] = (*repeated.get(name, ()), text)
    values: dict[str, Any] = {}
    for name, raw in (given | repeated).items():
        field = fields[name]
        shown = name.upper() if name in line.positional else field.flag
        try:
            values[name] = _convert(field, raw)
        except ValueError as error:
            raise UsageError(f"{shown} {error}. See retold {line.command} --help.") from None
    for name, owner in line.pairs.items():
        if name in values:
            values[name] = _pair(line, fields[name], fields[owner], namespace.order, values[name])
    return values


def _convert(field: ConfigField, raw: Any) -> Any:
    if isinstance(raw, bool):
        return raw
    item = tuple_item(field.kind)
    if item is None:
        return parse_text(field.kind, raw)
    texts = raw if isinstance(raw, tuple) else (raw,)
    if item in (int, float):  # no comma stands in a number: `0.9,0.99` is two
        texts = tuple(part for text in texts for part in text.split(","))
    return tuple(parse_text(item, text) for text in texts)


def _pair(
    line: CommandLine,
    field: ConfigField,
    owner: ConfigField,
    order: Sequence[tuple[str, str]],
    values: tuple[float, ...],
) -> tuple[float, ...]:
    """One value for each of the owner's: that which follows it, else 1; or all of them in order."""
    sequence = [name for name, _ in order if name in (field.name, owner.name)]
    owners = sequence.count(owner.name)
    follows = [
        sequence[place - 1] == owner.name
        for place, name in enumerate(sequence)
        if name == field.name and place > 0
    ]
    if len(follows) == len(values) and all(follows):
        remaining = iter(values)
        ends = [*sequence[1:], ""]
        return tuple(
            next(remaining) if following == field.name else 1.0
            for name, following in zip(sequence, ends, strict=True)
            if name == owner.name
        )
    if len(values) != owners:
        raise UsageError(
            f"{field.flag} is given {len(values)} times and {owner.flag} {owners} times. "
            f"Write each {field.flag} right after its {owner.flag}, or as many of both. "
            f"See retold {line.command} --help."
        )
    return values


def _describe_rest(line: CommandLine, parser: argparse.ArgumentParser, rest: Sequence[str]) -> str:
    unknown = next((text for text in rest if text.startswith("--")), None)
    if unknown is not None:
        name = unknown.partition("=")[0]
        flags = [flag for action in parser._actions for flag in action.option_strings]
        return f"There is no flag {name}.{suggest_nearest(name, flags)} See {parser.prog} --help."
    return (
        f"{rest[0]!r} is one argument too many: retold {line.command} takes "
        f"{' '.join(name.upper() for name in line.positional)}. See {parser.prog} --help."
    )


def _place(field: ConfigField) -> str:
    name = field.name.upper()
    return name if field.default is dataclasses.MISSING else f"[{name}]"


def _help_text(field: ConfigField, *, is_place: bool = False) -> str:
    text = field.help
    if field.default is not dataclasses.MISSING:
        text += f" (default: {describe_value(field.default)})"
    elif not is_place:
        text += " (required)"
    return text.strip().replace("%", "%%")


def _field_default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _field_docstrings(config_class: type) -> dict[str, str]:
    """The string under each annotated field, read from the class's source."""
    texts: dict[str, str] = {}
    for base in reversed(config_class.__mro__[:-1]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        body = typing.cast(ast.ClassDef, tree.body[0]).body
        for field, below in itertools.pairwise(body):
            is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if is_field and is_text:
                name = typing.cast(ast.Name, typing.cast(ast.AnnAssign, field).target).id
                text = typing.cast(ast.Constant, typing.cast(ast.Expr, below).value).value
                texts[name] = " ".join(str(text).split())
    return texts

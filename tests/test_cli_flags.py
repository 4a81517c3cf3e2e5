"""A configuration dataclass as a command line."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from retold.cli.flags import CommandLine, config_fields, make_parser, read_command_line
from retold.schemas.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BrewConfig:
    """What a made-up command is asked."""

    pot: Path
    """Pot to brew in."""
    cups: int = 2
    """Cups to
    fill."""
    strength: float = 0.5
    """Share of leaves, 100 % being all of them."""
    leaves: tuple[Path, ...] = ()
    """Leaves to use."""
    weight: tuple[float, ...] = ()
    """Weight of the leaves before it."""
    kind: Literal["green", "black"] = "green"
    """Kind of tea."""
    sugar: bool = False
    """Whether to add sugar."""
    minutes: int | None = 3
    """Minutes to wait; none means for ever."""
    pot_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the pot."""

    def __post_init__(self) -> None:
        if self.cups < 1:
            raise UsageError(f"--cups is {self.cups}, but at least 1 is filled.")


LINE = CommandLine(
    command="brew",
    sentence="Brew tea.",
    example="retold brew pot --cups 3",
    positional=("pot",),
    pairs={"weight": "leaves"},
)


def read(*arguments: str) -> BrewConfig:
    config, _ = read_command_line(LINE, BrewConfig, arguments)
    assert isinstance(config, BrewConfig)
    return config


def test_every_field_is_read_with_its_type() -> None:
    config = read(
        *("--cups", "3", "blue", "--strength=1e-1", "--kind", "black"),
        *("--sugar", "--minutes", "none", "--pot-args", '{"size": 5}'),
    )
    assert config == BrewConfig(
        pot=Path("blue"),
        cups=3,
        strength=0.1,
        kind="black",
        sugar=True,
        minutes=None,
        pot_args={"size": 5},
    )


def test_json_is_a_flag_of_every_command() -> None:
    assert read_command_line(LINE, BrewConfig, ["blue", "--json"])[1]
    assert not read_command_line(LINE, BrewConfig, ["blue"])[1]


def test_flag_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "brew.toml"
    file.write_text('cups = 5\nkind = "black"\nsugar = true\nleaves = ["a"]\nstrength = 1\n')
    config = read("blue", "--config", str(file), "--cups", "7", "--no-sugar")
    assert (config.cups, config.kind, config.sugar, config.minutes) == (7, "black", False, 3)
    assert config.leaves == (Path("a"),)
    assert config.strength == 1.0


@pytest.mark.parametrize(
    ("arguments", "weight"),
    [
        ("--leaves A --weight 2 --leaves B", (2.0, 1.0)),
        ("--leaves A --leaves B --weight 3", (1.0, 3.0)),
        ("--leaves A --weight 2 --leaves B --weight 3", (2.0, 3.0)),
        ("--leaves A --leaves B --weight 2 --weight 3", (2.0, 3.0)),
        ("--leaves A --leaves B --weight 2,3", (2.0, 3.0)),
        ("--leaves A --leaves B", ()),
    ],
)
def test_repeated_flags_pair_in_order(arguments: str, weight: tuple[float, ...]) -> None:
    assert read("blue", *arguments.split()).weight == weight


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["blue", "--cups", "x"],
            "--cups is 'x', which is not an integer. See retold brew --help.",
        ),
        (["blue", "--cups", "0"], "--cups is 0, but at least 1 is filled."),
        (["blue", "--strength", "nan"], "--strength is 'nan', which is not finite."),
        (["blue", "--kind", "blak"], "is none of green, black. Did you mean 'black'?"),
        (["blue", "--pot-args", "{size: 5}"], "which is not JSON"),
        (["blue", "--pot-args", "[5]"], "which is not a JSON object"),
        (["blue", "--cup", "3"], "There is no flag --cup. Did you mean '--cups'?"),
        (["blue", "red"], "'red' is one argument too many: retold brew takes POT."),
        ([], "POT is missing. See retold brew --help."),
        ([""], "POT is empty"),
        (["blue", "--cups"], "--cups: expected one argument. See retold brew --help."),
        (["blue", "--weight", "2"], "--weight is given 1 times and --leaves 0 times."),
        (["blue", "--leaves", "A", "--weight", "x"], "--weight is 'x', which is not a number"),
        (["blue", "--config", "none.toml"], "none.toml: the configuration file cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        read(*arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cup = 3", "there is no key 'cup'. Did you mean 'cups'?"),
        ("cups = 'three'", "'cups' is 'three', which is not an integer."),
        ("cups = true", "'cups' is True, which is not an integer."),
        ("sugar = 1", "'sugar' is 1, which is not true or false."),
        ("strength = inf", "'strength' is inf, which is not finite."),
        ("pot_args = 3", "'pot_args' is 3, which is not a table."),
        ("cups = ", "the configuration file is not TOML"),
    ],
)
def test_a_mistake_in_the_file_names_the_file(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "brew.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=re.escape(f"{file}: {message}")):
        read("blue", "--config", str(file))


def test_help_shows_sentence_example_docstrings_and_defaults() -> None:
    text = " ".join(make_parser(LINE, BrewConfig).format_help().split())
    assert "usage: retold brew POT [flags] Brew tea." in text
    assert "example: retold brew pot --cups 3" in text
    assert "--cups INTEGER Cups to fill. (default: 2)" in text
    assert "100 % being all of them. (default: 0.5)" in text
    assert "--kind green|black Kind of tea. (default: green)" in text
    assert "--sugar, --no-sugar Whether to add sugar. (default: off)" in text
    assert "--leaves PATH Leaves to use. (default: none)" in text


def test_docstrings_are_read_from_the_source() -> None:
    assert [item.help for item in config_fields(BrewConfig)][:2] == [
        "Pot to brew in.",
        "Cups to fill.",
    ]

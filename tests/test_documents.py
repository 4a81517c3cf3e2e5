"""The documents speak of commands and flags that exist, and the README's transcript runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retold.cli.__main__ import main
from retold.cli.commands import COMMANDS
from retold.cli.flags import config_fields, make_parser, read_command_line
from retold.cli.loop_config import LoopConfig
from retold.cli.loop_plan import read_plan

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md"), ROOT / "Makefile"]
)
EXAMPLES = sorted(ROOT.glob("examples/*.toml"))
_FLAGS = re.MULTILINE | re.DOTALL
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|[\[\]|…]")


def retold_lines(path: Path) -> list[str]:
    """Every `retold COMMAND …` of a document, in code blocks and in code spans."""
    text = path.read_text().replace("\\\n", " ")
    found = re.findall(
        r"(?:^[ \t]*(?:\$ |.*/)?|`)(retold [a-z]+(?![\w.])[^`\n]*)", text, re.MULTILINE
    )
    return [re.split(r" [|>#] | 2>", line)[0].strip() for line in found]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_and_flag_in_a_document_exists(path: Path) -> None:
    for line in retold_lines(path):
        name = line.split()[1]
        assert name in COMMANDS, line
        command = COMMANDS[name]
        flags = make_parser(command.line, command.config_class)._option_string_actions
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line):
            assert flag in flags, line


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_a_sentence_an_example_and_a_text_for_every_flag(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert command.line.sentence in text
    assert command.line.example in text
    for field in config_fields(command.config_class):
        assert field.help, f"{name}: {field.name} has no docstring"
        assert (field.name if field.name in command.line.positional else field.flag) in text.lower()
    program, called, *arguments = shlex.split(command.line.example)
    assert (program, called) == ("retold", name)
    read_command_line(command.line, command.config_class, arguments)


def test_commands_written_out_in_full_can_be_read() -> None:
    complete = [
        line
        for path in DOCUMENTS
        for line in retold_lines(path)
        if not PLACEHOLDER.search(re.sub(r"'[^']*'", "", line)) and "$(" not in line
    ]
    for line in complete:
        _, name, *arguments = shlex.split(line)
        if arguments and "--help" not in arguments:
            read_command_line(COMMANDS[name].line, COMMANDS[name].config_class, arguments)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_loop(path: Path, tmp_path: Path) -> None:
    plan = read_plan(LoopConfig(config=path, run=tmp_path / "run"))
    assert plan.iterations >= 2


def test_short_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"retold {name}" in text for name in COMMANDS)


def test_help_starts_neither_torch_nor_dask() -> None:
    for name in COMMANDS:
        code = (
            f"import sys; from retold.cli.__main__ import main; main([{name!r}, '--help']); "
            f"sys.exit(bool({{'torch', 'distributed', 'crafter'}} & set(sys.modules)))"
        )
        process = subprocess.run(
            [sys.executable, "-P", "-c", code], stdout=subprocess.DEVNULL, check=False
        )
        assert process.returncode == 0, name


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def readme_steps() -> list[str]:
    """The shell lines (`$ …`) and Python blocks of the README, in order."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    steps = re.findall(r"^\$ (retold [^\n]*)$|^```python\n(.*?)^```", text, _FLAGS)
    return [shell or f"python - <<'END'\n{python}END" for shell, python in steps]


@pytest.mark.long
def test_the_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    steps = readme_steps()
    assert sum(step.startswith("retold") for step in steps) >= 6
    for step in steps:
        output = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {step}"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert output.returncode in (0, 141), (step, output)

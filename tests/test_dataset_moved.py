"""Commands that read variants find their sources where `--source OLD=NEW` says they have moved."""

from pathlib import Path

import pytest

from retold.cli.commands import COMMANDS
from retold.cli.flags import read_command_line
from retold.collect.command import CollectConfig, collect
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.errors import DatasetError


@pytest.mark.parametrize(
    "line",
    [
        "compact {told} {new} --materialize",
        "export parquet {told} {new}",
        "cache {told} {new}",
        "train {new} --data {told} --updates 1 --context-length 8",
    ],
)
def test_a_moved_source_is_found_by(line: str, tmp_path: Path) -> None:
    task = {"size": 7, "limit": 20}
    collect(CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw", episodes=2))
    relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "retold", workers=0))
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    name, *arguments = line.format(told=tmp_path / "retold", new=tmp_path / "new").split()
    command = COMMANDS[name]

    def run(*more: str) -> None:
        config, _ = read_command_line(command.line, command.config_class, [*arguments, *more])
        command.run(config)

    with pytest.raises(DatasetError, match="was not found.*--source OLD=NEW"):
        run()
    run("--source", f"../raw={tmp_path / 'elsewhere'}", *["--resume"] * (name == "train"))

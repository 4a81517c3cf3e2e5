"""Commands that read variants find their sources where `--source OLD=NEW` says they have moved."""

from pathlib import Path

import pytest

from retold.cli.audit import AuditConfig, audit_dataset
from retold.cli.commands import COMMANDS
from retold.cli.flags import read_command_line
from retold.cli.info import InfoConfig, describe_dataset
from retold.collect.command import CollectConfig, collect
from retold.relabel.command import RelabelConfig, relabel
from retold.schemas.errors import DatasetError


@pytest.mark.parametrize(
    "line",
    [
        "compact {told} {new} --materialize",
        "export parquet {told} {new}",
        "cache {told} {new}",
        "filter {told} {new} --where length>0",
        "split {told} {new} {new}-test --share 0.5",
        "merge {new} --data {told} --data {raw2}",
        "coverage {told}",
        "explain {told} 0",
        "replay {told} 0",
        "train {new} --data {told} --updates 1 --context-length 8",
    ],
)
def test_a_moved_source_is_found_by(line: str, tmp_path: Path) -> None:
    task = {"size": 7, "limit": 20}
    # So many that a split, which goes by the hash of random ids, leaves neither side empty.
    collect(CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw", episodes=24))
    collect(
        CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw2", episodes=2, seed=1)
    )
    relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "retold", workers=0))
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    places = {"told": tmp_path / "retold", "new": tmp_path / "new", "raw2": tmp_path / "raw2"}
    name, *arguments = line.format(**places).split()
    command = COMMANDS[name]

    def run(*more: str) -> None:
        config, _ = read_command_line(command.line, command.config_class, [*arguments, *more])
        command.run(config)

    with pytest.raises(DatasetError, match="was not found.*--source OLD=NEW"):
        run()
    run("--source", f"../raw={tmp_path / 'elsewhere'}", *["--resume"] * (name == "train"))


def test_a_moved_source_is_found_by_audit_and_info(tmp_path: Path) -> None:
    task = {"size": 7, "limit": 20}
    collect(CollectConfig(task="maze", task_args=task, dataset=tmp_path / "raw", episodes=2))
    relabel(RelabelConfig(source=tmp_path / "raw", target=tmp_path / "retold", workers=0))
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    told, moved = tmp_path / "retold", (f"../raw={tmp_path / 'elsewhere'}",)
    lost = audit_dataset(AuditConfig(dataset=told, replay="all"))
    assert lost.exit_status == 1 and "was not found" in lost.describe()
    found = audit_dataset(AuditConfig(dataset=told, replay="all", source=moved))
    assert (found.exit_status, found.replayed) == (0, found.episodes)
    lost_info = describe_dataset(InfoConfig(dataset=told)).to_json()
    assert "was not found" in lost_info["lost_source"] and lost_info["goals"]
    (ancestor,) = lost_info["lineage"]
    assert ancestor["path"] is None and "was not found" in ancestor["lost"]
    info = describe_dataset(InfoConfig(dataset=told, source=moved)).to_json()
    assert info["lost_source"] is None
    assert info["lineage"][0]["path"] == str(tmp_path / "elsewhere")

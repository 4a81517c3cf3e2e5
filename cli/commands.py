"""Every command of `retold`: its line, and where its configuration, work and report are found.

Stages are imported by the command that is asked for, never by this table, so that help and
short commands start without torch or Dask.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from retold.cli.flags import CommandLine


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command, by the names of what to import."""

    line: CommandLine
    config: str
    """`module:class` of the configuration."""
    work: str
    """`module:function` that takes the configuration and returns the result."""

    @property
    def config_class(self) -> type:
        """The configuration dataclass, imported now."""
        found: type = _load(self.config)
        return found

    def run(self, config: Any) -> Any:
        """The result of the command's work."""
        return _load(self.work)(config)


COMMANDS = {
    command.line.command: command
    for command in (
        Command(
            line=CommandLine(
                command="tasks",
                sentence="List the tasks, or `show` one: its arguments, goals and a frame.",
                example="retold tasks show maze --png maze.png",
                positional=("action", "name"),
                has_config_file=False,
            ),
            config="retold.cli.tasks:TasksConfig",
            work="retold.cli.tasks:describe_tasks",
        ),
        Command(
            line=CommandLine(
                command="collect",
                sentence="Record episodes of a task into a dataset.",
                example="retold collect maze runs/maze/raw --episodes 200 --seed 1",
                positional=("task", "dataset"),
            ),
            config="retold.collect.command:CollectConfig",
            work="retold.collect.command:collect",
        ),
        Command(
            line=CommandLine(
                command="relabel",
                sentence="Retell each episode under instructions that it happened to follow.",
                example="retold relabel runs/maze/raw runs/maze/retold --variants 4",
                positional=("source", "target"),
            ),
            config="retold.relabel.command:RelabelConfig",
            work="retold.relabel.command:relabel",
        ),
        Command(
            line=CommandLine(
                command="explain",
                sentence="Show an episode's goals as a time line, with every instruction put to it.",
                example="retold explain runs/maze/retold 0",
                positional=("dataset", "episode"),
                has_config_file=False,
            ),
            config="retold.cli.explain:ExplainConfig",
            work="retold.cli.explain:explain",
        ),
        Command(
            line=CommandLine(
                command="coverage",
                sentence="Report what relabelling adds: goals, reward density, returns.",
                example="retold coverage runs/maze/retold --figure coverage.png",
                positional=("dataset",),
                has_config_file=False,
            ),
            config="retold.cli.coverage:CoverageConfig",
            work="retold.cli.coverage:report_coverage",
        ),
        Command(
            line=CommandLine(
                command="cache",
                sentence="Keep a dataset's decoded arrays as plain files, to sample faster.",
                example="retold cache runs/maze/retold runs/maze/cache --bytes 2000000000",
                positional=("dataset", "folder"),
                has_config_file=False,
            ),
            config="retold.dataset.cache_command:CacheConfig",
            work="retold.dataset.cache_command:cache_dataset",
        ),
        Command(
            line=CommandLine(
                command="train",
                sentence="Learn a policy from datasets and publish it in the run's registry.",
                example="retold train runs/maze/run --data runs/maze/raw --weight 1"
                " --data runs/maze/retold --weight 3 --updates 300",
                positional=("run",),
                pairs={"weight": "data"},
            ),
            config="retold.train.config:TrainConfig",
            work="retold.train.plan:train_or_plan",
        ),
        Command(
            line=CommandLine(
                command="policy",
                sentence="Show what a policy is: its task, sizes, and the data behind it.",
                example="retold policy show runs/maze/run",
                positional=("action", "policy"),
                has_config_file=False,
            ),
            config="retold.cli.policy:PolicyConfig",
            work="retold.cli.policy:show_policy",
        ),
        Command(
            line=CommandLine(
                command="evaluate",
                sentence="Score a policy on worlds that no training ever saw.",
                example="retold evaluate runs/maze/run --episodes 100",
                positional=("policy", "task"),
            ),
            config="retold.evaluate.command:EvaluateConfig",
            work="retold.evaluate.command:evaluate",
        ),
        Command(
            line=CommandLine(
                command="loop",
                sentence="Collect, relabel, train and evaluate, over and over with the new policy.",
                example="retold loop examples/maze.toml --iterations 3",
                positional=("config",),
                has_config_file=False,
            ),
            config="retold.cli.loop_config:LoopConfig",
            work="retold.cli.loop:run_loop",
        ),
        Command(
            line=CommandLine(
                command="import",
                sentence="Append the episodes of a Minari, HDF5, Parquet or other source to a dataset.",
                example="retold import minari D4RL/door/human-v2 runs/door/raw",
                positional=("format", "source", "dataset"),
                has_config_file=False,
            ),
            config="retold.dataset.import_command:ImportConfig",
            work="retold.dataset.import_command:import_dataset",
        ),
        Command(
            line=CommandLine(
                command="export",
                sentence="Write a dataset as Minari, HDF5 or Parquet files.",
                example="retold export parquet runs/maze/raw runs/maze/parquet --rows episodes",
                positional=("format", "dataset", "target"),
                has_config_file=False,
            ),
            config="retold.dataset.export_command:ExportConfig",
            work="retold.dataset.export_command:export_dataset",
        ),
        Command(
            line=CommandLine(
                command="push",
                sentence="Send a dataset to the Hugging Face Hub, as one commit.",
                example="retold push runs/maze/raw me/maze --license cc-by-4.0 --tag v1",
                positional=("dataset", "repository"),
                has_config_file=False,
            ),
            config="retold.dataset.hub_push:PushConfig",
            work="retold.cli.push:push",
        ),
        Command(
            line=CommandLine(
                command="pull",
                sentence="Get a dataset, or a part of one, from the Hugging Face Hub.",
                example="retold pull me/maze@v1 runs/maze/copy",
                positional=("repository", "output"),
                has_config_file=False,
            ),
            config="retold.dataset.hub_pull:PullConfig",
            work="retold.cli.pull:pull",
        ),
        Command(
            line=CommandLine(
                command="push-policy",
                sentence="Send a policy to the Hugging Face Hub, with a model card, as one commit.",
                example="retold push-policy runs/maze/run me/maze-policy --license mit --tag v1",
                positional=("policy", "repository"),
                has_config_file=False,
            ),
            config="retold.cli.push_policy:PushPolicyConfig",
            work="retold.cli.push_policy:push_policy",
        ),
        Command(
            line=CommandLine(
                command="pull-policy",
                sentence="Get a policy from the Hugging Face Hub, every file checked.",
                example="retold pull-policy me/maze-policy@v1 runs/maze/policy",
                positional=("repository", "output"),
                has_config_file=False,
            ),
            config="retold.cli.pull_policy:PullPolicyConfig",
            work="retold.cli.pull_policy:pull_policy",
        ),
        Command(
            line=CommandLine(
                command="info",
                sentence="Say what a dataset holds.",
                example="retold info runs/maze/raw",
                positional=("dataset",),
                has_config_file=False,
            ),
            config="retold.cli.info:InfoConfig",
            work="retold.cli.info:describe_dataset",
        ),
        Command(
            line=CommandLine(
                command="audit",
                sentence="Check a dataset: files, counts, checksums and recomputed rewards.",
                example="retold audit runs/maze/raw --replay all",
                positional=("dataset",),
                has_config_file=False,
            ),
            config="retold.cli.audit:AuditConfig",
            work="retold.cli.audit:audit_dataset",
        ),
        Command(
            line=CommandLine(
                command="replay",
                sentence="Play a stored episode again from its seed and actions, and compare it.",
                example="retold replay runs/maze/raw 0 --video maze.gif",
                positional=("dataset", "episode"),
                has_config_file=False,
            ),
            config="retold.cli.replay:ReplayConfig",
            work="retold.cli.replay:replay",
        ),
        Command(
            line=CommandLine(
                command="log",
                sentence="List what was done to a dataset, the newest commit first.",
                example="retold log runs/maze/raw",
                positional=("dataset",),
                has_config_file=False,
            ),
            config="retold.dataset.history:LogConfig",
            work="retold.dataset.history:list_commits",
        ),
        Command(
            line=CommandLine(
                command="diff",
                sentence="Say in which episodes two datasets or snapshots differ.",
                example="retold diff runs/maze/raw@0 runs/maze/raw",
                positional=("one", "two"),
                has_config_file=False,
            ),
            config="retold.dataset.history:DiffConfig",
            work="retold.dataset.history:diff",
        ),
        Command(
            line=CommandLine(
                command="tag",
                sentence="Give a snapshot of a dataset a name for good.",
                example="retold tag runs/maze/raw@2 paper",
                positional=("dataset", "name"),
                has_config_file=False,
            ),
            config="retold.dataset.history:TagConfig",
            work="retold.dataset.history:tag",
        ),
        Command(
            line=CommandLine(
                command="evict",
                sentence="Let episodes of a dataset go: the oldest, or those of a condition.",
                example="retold evict runs/maze/raw --steps 1000000",
                positional=("dataset",),
                has_config_file=False,
            ),
            config="retold.dataset.evict:EvictConfig",
            work="retold.dataset.evict:evict",
        ),
        Command(
            line=CommandLine(
                command="compact",
                sentence="Merge small shards, or write variants out with arrays of their own.",
                example="retold compact runs/maze/retold runs/maze/whole --materialize",
                positional=("dataset", "output"),
                has_config_file=False,
            ),
            config="retold.dataset.compact:CompactConfig",
            work="retold.dataset.compact:compact",
        ),
        Command(
            line=CommandLine(
                command="filter",
                sentence="Make a dataset of the episodes that meet a condition.",
                example="retold filter runs/maze/raw runs/maze/good --where 'success and length < 30'",
                positional=("dataset", "output"),
                has_config_file=False,
            ),
            config="retold.dataset.filter:FilterConfig",
            work="retold.dataset.filter:filter_dataset",
        ),
        Command(
            line=CommandLine(
                command="split",
                sentence="Make two datasets, one to train on and one to test with.",
                example="retold split runs/maze/raw runs/maze/train runs/maze/test --share 0.2",
                positional=("dataset", "train", "test"),
                has_config_file=False,
            ),
            config="retold.dataset.split:SplitConfig",
            work="retold.dataset.split:split",
        ),
        Command(
            line=CommandLine(
                command="merge",
                sentence="Make a dataset of all episodes of several.",
                example="retold merge runs/maze/all --data runs/maze/raw --data runs/maze/retold",
                positional=("output",),
                has_config_file=False,
            ),
            config="retold.dataset.merge:MergeConfig",
            work="retold.dataset.merge:merge",
        ),
        Command(
            line=CommandLine(
                command="gc",
                sentence="Delete the files that no snapshot worth keeping needs.",
                example="retold gc runs/maze/raw --dry-run",
                positional=("dataset",),
                has_config_file=False,
            ),
            config="retold.dataset.gc:GcConfig",
            work="retold.dataset.gc:collect_garbage",
        ),
        Command(
            line=CommandLine(
                command="repair",
                sentence="Save what is sound of a damaged dataset in a new one.",
                example="retold repair runs/maze/raw runs/maze/saved",
                positional=("dataset", "new"),
                has_config_file=False,
            ),
            config="retold.dataset.repair:RepairConfig",
            work="retold.dataset.repair:repair",
        ),
        Command(
            line=CommandLine(
                command="migrate",
                sentence="Write a dataset of an older format version anew.",
                example="retold migrate runs/maze/old runs/maze/new",
                positional=("old", "new"),
                has_config_file=False,
            ),
            config="retold.dataset.migrate:MigrateConfig",
            work="retold.dataset.migrate:migrate",
        ),
    )
}


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)

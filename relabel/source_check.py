"""Whether a dataset can be retold the way that is asked, before anything is made."""

from retold.dataset.reader import DatasetReader
from retold.relabel.config import RelabelConfig
from retold.relabel.goal_retelling import GOAL_STRATEGIES
from retold.relabel.goal_reward import NAMES
from retold.relabel.statistics import MOST_CHAINED_GOALS
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import DatasetError, UsageError


def check_source(reader: DatasetReader, config: RelabelConfig) -> None:
    """Refuse a source that has nothing to retell, or settings that do not fit it.

    Raises:
        DatasetError: there are no goals, no collected episodes, or too many goals to count.
        UsageError: the strategy or the reward does not fit goal-conditioned data.
    """
    sizes = [task.vocabulary.size for task in reader.schema.tasks if task.vocabulary]
    is_conditioned = is_retold_by_goal(reader.schema)
    if not is_conditioned and len(sizes) < len(reader.schema.tasks):
        raise DatasetError(
            f"{reader.path}: task {reader.schema.tasks[0].name} has no goals, so there is nothing "
            f"to retell. Train on the dataset as it is."
        )
    if all(entry.kind != "raw" for entry in reader.shards):
        raise DatasetError(
            f"{reader.path}: the dataset holds variants only. Retell the dataset that they were "
            f"made from."
        )
    if is_conditioned:
        _check_conditioned(reader, config)
    elif config.goal_reward is not None:
        raise UsageError(
            f"--goal-reward is for observations with achieved_goal and desired_goal, which "
            f"{reader.path} does not have. Leave it out."
        )
    elif config.strategy == "chain" and max(sizes) > MOST_CHAINED_GOALS:
        raise DatasetError(
            f"{reader.path}: --strategy chain counts what comes before what, for up to "
            f"{MOST_CHAINED_GOALS} goals, but the task has {max(sizes)}. Choose --strategy rare."
        )


def is_retold_by_goal(schema: DatasetSchema) -> bool:
    """Whether variants get another desired goal; a vocabulary of goals goes before that."""
    return schema.is_goal_conditioned and all(task.vocabulary is None for task in schema.tasks)


def _check_conditioned(reader: DatasetReader, config: RelabelConfig) -> None:
    if config.strategy not in GOAL_STRATEGIES:
        raise UsageError(
            f"--strategy {config.strategy} arranges goals of a vocabulary, but {reader.path} has "
            f"achieved and desired goals. Choose one of {', '.join(GOAL_STRATEGIES)}."
        )
    if config.goal_reward is None:
        raise UsageError(
            f"{reader.path} has achieved and desired goals: say how a reward follows from them. "
            f"Give --goal-reward one of {', '.join(NAMES)}."
        )
    if config.length_weights or config.goal_limit is not None:
        raise UsageError(
            "--length-weights and --goal-limit are for instructions of goals; a goal-conditioned "
            "variant has one goal. Leave them out."
        )

"""The errors a user can cause; each prints as one line and sets an exit status."""


class RetoldError(Exception):
    """Something is wrong with what was given to Retold: its message says where, what and what to do."""

    exit_status = 1


class UsageError(RetoldError):
    """The command line or a configuration value is wrong."""

    exit_status = 2


class TaskError(UsageError):
    """A task name or a task argument does not exist or is out of range."""


class FormatError(RetoldError):
    """A file is not what the format says it must be, or is of a version that this Retold cannot read."""


class DatasetError(RetoldError):
    """A dataset is missing, damaged, or does not fit what was asked of it."""


class ConflictError(DatasetError):
    """Another process changed the dataset in a way that the planned commit cannot follow."""


class PolicyError(RetoldError):
    """A policy snapshot or registry is missing, damaged, or does not fit the task."""


class RunError(RetoldError):
    """A training or loop run directory is missing, damaged, or belongs to another configuration."""


class EnvironmentFailure(RetoldError):
    """An environment raised, or returned something outside its declared spaces."""


class RelabelError(RetoldError):
    """A hindsight strategy broke its contract."""

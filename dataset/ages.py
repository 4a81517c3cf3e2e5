"""The age of shards: when what they hold came into the dataset, whatever they were merged into since."""

from retold.dataset.log import CommitLog
from retold.schemas.commit import ShardEntry


def shards_by_age(log: CommitLog, through: int) -> list[ShardEntry]:
    """Live shards of commit `through`, those with the oldest episodes first.

    A commit that replaces shards names them (`details.replaces`); the new shard is as old as they.
    Only neighbours in this order are merged, so that it is the order of the episodes, too.
    """
    ages: dict[str, tuple[int, int]] = {}
    for commit in log.commits(through):
        replaces = commit.details.get("replaces", {})
        for place, entry in enumerate(commit.added):
            before = [ages[old] for old in replaces.get(entry.shard_id, ()) if old in ages]
            ages[entry.shard_id] = min(before, default=(commit.number, place))
    return sorted(log.live_shards(through), key=lambda entry: ages[entry.shard_id])


def find_origins(log: CommitLog, shard_id: str) -> set[str]:
    """The shards that a shard's episodes were first committed in: itself, unless it replaced some."""
    replaces: dict[str, list[str]] = {}
    for commit in log.commits():
        replaces |= commit.details.get("replaces", {})
    origins: set[str] = set()
    pending, seen = [shard_id], {shard_id}
    while pending:
        current = pending.pop()
        before = [old for old in replaces.get(current, ()) if old not in seen]
        if current not in replaces:
            origins.add(current)
        seen.update(before)
        pending += before
    return origins

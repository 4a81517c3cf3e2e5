"""The age of shards: when what they hold came into the dataset, whatever they were merged into since."""

from retold.schemas.commit import Commit

Ages = dict[str, tuple[int, int]]
"""By shard id: number of the commit that its oldest episodes came with, and their place in it."""


def apply_ages(ages: Ages, commit: Commit) -> None:
    """Add the ages of a commit's shards, and forget those of the shards that it removes.

    A commit that replaces shards names them (`details.replaces`); the new shard is as old as they.
    """
    replaces = commit.details.get("replaces", {})
    for place, entry in enumerate(commit.added):
        before = [ages[old] for old in replaces.get(entry.shard_id, ()) if old in ages]
        ages[entry.shard_id] = min(before, default=(commit.number, place))
    for shard_id in commit.removed:
        ages.pop(shard_id, None)

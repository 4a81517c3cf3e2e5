"""Rolls policies out in environments and appends the episodes to a dataset; replays stored ones."""

"""Reads datasets; writes a run: checkpoints, metrics and policy snapshots."""

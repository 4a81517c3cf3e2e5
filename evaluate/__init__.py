"""Reads policy snapshots; plays and scores them on evaluation seeds."""

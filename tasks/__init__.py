"""Environments with their goal vocabularies and goal events. Reads and writes nothing."""

"""The trajectory dataset: reads and writes shards, the commit log and the episode table."""

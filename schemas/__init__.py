"""What is on disk, in words and in JSON Schema, and the rules every stage shares.

Reads and writes nothing. Holds the records that stages exchange (episodes, commits, manifests, policy
descriptions), goal vocabularies, the instruction reward function, identities and random streams, and
the error classes. Standard library and NumPy only.
"""

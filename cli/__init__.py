"""The `retold` command and the loop that chains the stages."""

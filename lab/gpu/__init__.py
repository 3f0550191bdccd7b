"""What tokalign does on a machine with a GPU, as a few calls without a network (README.md)."""

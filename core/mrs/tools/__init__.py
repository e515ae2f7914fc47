"""Tools: the calls that a model writes, in the format of its family."""

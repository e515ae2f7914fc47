"""One file for each family's format of calls."""

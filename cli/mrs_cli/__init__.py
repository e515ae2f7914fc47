"""The command line of `mrs`."""

from __future__ import annotations


def version() -> str:
    """The installed version of the program."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mrs")
    except PackageNotFoundError:  # a source tree that was not installed
        return "(not installed)"

"""Every test of the engine runs on one thread."""

from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder

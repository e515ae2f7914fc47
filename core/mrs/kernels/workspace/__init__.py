"""Temporary memory (workspace) of each kernel, and the tile sizes that determine it.

One file for each kernel, without torch: the kernels and the planner import the same constants.
"""

"""Measuring what a run takes: its worst step, peaks of memory, memory in use."""

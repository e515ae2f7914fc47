"""Measures a run: speed, peak memory of its largest step, memory in use."""

"""Trains the demo model from dialogues that it makes up: `python -m mrs.demo.train`."""

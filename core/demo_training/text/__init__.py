"""Trains the demo model from dialogues that it makes up: `python -m demo_training.text`."""

"""Draws images, makes up questions about them, and trains the demo vision model with both."""

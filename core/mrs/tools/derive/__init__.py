"""Derives how a chat template writes calls from what it makes of conversations with calls."""

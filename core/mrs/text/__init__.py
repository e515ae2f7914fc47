"""Tokenizers, chat templates, and the decoding of replies."""

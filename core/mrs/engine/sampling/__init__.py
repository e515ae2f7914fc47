"""Choosing the next token from logits: processors, filters and the draw."""

"""Schemes by which checkpoints store a quantized weight in several tensors. No torch."""

"""Generate tokens with a loaded model."""

"""The models that a server answers with."""

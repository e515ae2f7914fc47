"""Families of vision models, one file each."""

"""Families that see: one small file each, and what their towers and projectors are made of."""

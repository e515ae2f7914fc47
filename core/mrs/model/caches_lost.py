"""What a decoder raises when the caches of all sequences are gone."""

from __future__ import annotations


class CachesLost(Exception):
    """All tokens of all sequences have to be computed again, with new caches."""

"""Models for Python programs: the names that `mrs` itself exports."""

"""The Python API; the package `mrs` exports its public names."""

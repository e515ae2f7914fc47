"""The fields of requests and responses."""

"""Batches: files of requests, one a line, in the form of OpenAI's Batch API.

`lines.py` reads such a file, `results.py` keeps the answers of a batch, and `runner.py` sends each
line through the server's own routes, so that a line means what the same request over HTTP does.
"""

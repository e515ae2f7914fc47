"""Requests of strangers who mean harm, a server in a control group, and a neighbour beside it.

Each room has generators of requests of one kind; `suite.py` draws from all of them, by a seed.
"""

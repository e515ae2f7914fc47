"""Runs that let a server of the same user on this machine answer, instead of loading its model.

A server listens on a socket of the file system beside its entry for `mrs ps`, in a folder that only
its user may open; so no key is needed. `same_run.py` says when the answer is the same.
"""

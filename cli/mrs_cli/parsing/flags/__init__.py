"""Every flag, declared once. A group of flags is a dataclass; commands say which groups they take.

A field's default means "not given": the value that then holds is named in the help. Groups are
never compared or printed: leaving the code for that out saves start-up time.

To add a flag, add a field to a group, then write man page and completions anew:
`python -m mrs_cli.docs`.
"""

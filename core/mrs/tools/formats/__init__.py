"""One file for each family's format of calls.

To add a format, write a file here: the texts around a call, how its arguments are written, and
what a chat template with this format contains. Add its name to `core/mrs/tools/find_format.py`,
and a template and a reply to `tests/tools/tool_cases.py`.
"""

"""Tokenizers in other files than tokenizer.json, told apart by content.

To add a format: a reader that returns a `Described`, and its line in `read_file.py`. To add a class
of tokenizers: its line in the reader's table, with what its Python code does beyond the file.
"""

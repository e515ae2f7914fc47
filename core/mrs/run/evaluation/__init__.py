"""`mrs eval`: perplexity of a model, and how far it diverges from another on the same text.

`windows.py` cuts a text, `evaluate.py` computes it with the reference and then with each setting,
`window_file.py` keeps what is done, `summary.py` makes figures with standard errors of it.
"""

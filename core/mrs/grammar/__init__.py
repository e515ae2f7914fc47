"""Grammars: which tokens may follow in a reply that has to have some form."""

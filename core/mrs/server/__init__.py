"""Serve a model over HTTP, with the interface of OpenAI."""

"""From a request to a loaded model, and from what it is asked to prompts, replies and vectors."""

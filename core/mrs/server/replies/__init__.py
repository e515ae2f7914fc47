"""Replies on their way from the engine to asyncio."""

"""Images: from a path, an address or a data: URI to a vision tower's pixels, within limits."""

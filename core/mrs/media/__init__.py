"""Images and videos: from a path, an address or a data: URI to pixels, within limits."""

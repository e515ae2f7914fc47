"""Pictures: from a path, an address or a data: URI to pixels, within bounds."""

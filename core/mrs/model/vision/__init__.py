"""Vision modules: towers that encode patches, and projectors to the decoder's hidden size."""

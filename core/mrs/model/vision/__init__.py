"""What sees for a model: towers that look at patches, projectors onto the decoder's width."""

"""What `mrs doctor` says of this machine."""

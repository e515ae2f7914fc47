"""What the server does with the requests of each path."""

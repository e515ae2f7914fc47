"""HTTP itself: sockets, checks of requests, bodies and errors."""

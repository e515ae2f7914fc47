"""What is known of requests: lines for the operator, and metrics."""

"""The paths of the server, and the application that they make up."""

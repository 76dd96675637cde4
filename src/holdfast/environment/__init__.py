"""What flags and variables give to a command that only connects, read without the libraries of the server."""

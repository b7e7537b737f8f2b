"""What runs where: Ray Serve, HTTP and the command line."""

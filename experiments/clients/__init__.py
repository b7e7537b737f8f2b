"""Other people's clients, run against a live server: each in an environment of its own."""

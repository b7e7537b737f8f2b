"""This engine and others of its kind, measured alternately in one run."""

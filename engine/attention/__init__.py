"""Paged attention: what a step's rows attend to, and the kernels that do it."""

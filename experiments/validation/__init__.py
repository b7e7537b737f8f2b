"""Simulated against measured: one load on a live server and on its simulation."""

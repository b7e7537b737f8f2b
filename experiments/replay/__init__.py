"""Sends a load to a live server in real time."""

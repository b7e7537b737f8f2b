"""Loads: what clients ask for and when, read from traces or made up, and written as traces."""

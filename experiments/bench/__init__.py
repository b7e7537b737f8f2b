"""``tidegate bench``: how fast the parts are on this machine, as one table."""

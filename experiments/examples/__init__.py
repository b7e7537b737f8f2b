"""Small programs to watch a running deployment with."""

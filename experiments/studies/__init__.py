"""Studies: questions put to the simulator, each a command and a page in docs/experiments/."""

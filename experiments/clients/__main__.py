"""``python -m experiments.clients``."""

import sys

from experiments.clients.command import main

if __name__ == "__main__":
    sys.exit(main())

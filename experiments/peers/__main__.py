"""``python -m experiments.peers``."""

import sys

from experiments.peers.command import main

sys.exit(main())

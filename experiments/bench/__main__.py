"""``python -m experiments.bench``."""

import sys

from experiments.bench.command import main

sys.exit(main())

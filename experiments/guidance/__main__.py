"""``python -m experiments.guidance``."""

import sys

from experiments.guidance.command import main

sys.exit(main())

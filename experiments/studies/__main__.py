"""``python -m experiments.studies``."""

import sys

from experiments.studies.command import main

sys.exit(main())

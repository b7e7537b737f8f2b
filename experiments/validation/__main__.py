"""``python -m experiments.validation``"""

import sys

from experiments.validation.command import main

if __name__ == "__main__":
    sys.exit(main())

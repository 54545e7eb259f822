"""`python -m tgflow`: the command line."""

import sys

from tgflow.cli import main

if __name__ == "__main__":
    sys.exit(main())

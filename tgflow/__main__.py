"""`python -m tgflow`: the command line."""

import sys

from tgflow.cli import main

sys.exit(main())

"""How much a test tries: little in `make test`, all in `make test-all` or where a file is run."""

from __future__ import annotations

import os

IS_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"
QUICK_EXAMPLES = 20


def tries(full: int, quick: int = QUICK_EXAMPLES) -> int:
    """Return how many examples to try: `full`, or in a quick run at most `quick`."""
    return min(full, quick) if IS_QUICK else full

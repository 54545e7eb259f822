"""Number of cases a test tries: few in `make test`, all in `make test-all` or for a single file."""

import os

import pytest

IS_QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"
QUICK_EXAMPLES = 8


def tries(full, quick=QUICK_EXAMPLES):
    """Return how many examples to try: `full`, or in a quick run at most `quick`."""
    return min(full, quick) if IS_QUICK else full


def slow(*values):
    """Return one case of `parametrize` that a quick run leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_in_full(test):
    """Mark a test slow unless it tries few examples, as in a quick run."""
    return test if IS_QUICK else pytest.mark.slow(test)


def cases(values, quick):
    """Return all values for `parametrize`, those that are not in `quick` marked slow."""
    return [value if value in quick else slow(value) for value in values]

"""Benchmarks of tgflow, alone and beside other libraries."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # before torch's OpenMP reads it, as tgflow does

"""What modules outside any room use of the core."""

from tgflow import _core
from tgflow._core import (
    IntIdMap,
    StringIdMap,
    mix64,
    num_threads,
    probe_reads,
    set_num_threads,
    simd_level,
)

__all__ = [
    "CORE_FILE",
    "IntIdMap",
    "StringIdMap",
    "mix64",
    "num_threads",
    "probe_reads",
    "set_num_threads",
    "simd_level",
]

CORE_FILE = _core.__file__
"""The compiled module."""

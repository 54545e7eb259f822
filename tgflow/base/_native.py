"""Bindings of the core for top-level modules."""

from tgflow import _core
from tgflow._core import (
    IdColumn,
    IntIdMap,
    StringIdMap,
    are_finite,
    compare_scores,
    derive_key,
    link_figures,
    may_have_other_spellings,
    num_threads,
    probe_reads,
    rank_scores,
    set_num_threads,
    simd_level,
)

__all__ = [
    "CORE_FILE", "IdColumn", "IntIdMap", "StringIdMap", "are_finite", "compare_scores",
    "derive_key", "link_figures", "may_have_other_spellings", "num_threads", "probe_reads",
    "rank_scores", "set_num_threads", "simd_level",
]  # fmt: skip

CORE_FILE = _core.__file__
"""The compiled module."""

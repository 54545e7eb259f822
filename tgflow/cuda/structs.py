"""Structs that kernels take by value, with the same fields as in the headers."""

from __future__ import annotations

import ctypes


def words(names: str) -> tuple[tuple[str, type[ctypes.c_int64]], ...]:
    """Return 64-bit fields, numbers or addresses, with the space-separated `names`."""
    return tuple((name, ctypes.c_int64) for name in names.split())


class StoreView(ctypes.Structure):
    """The store for its readers (detail/store_view.hpp)."""

    _fields_ = words(
        "heads num_nodes chunks tiers relations change reads first_part num_other_parts"
    )


class Snapshot(ctypes.Structure):
    """A store and the log position up to which it is published (cuda/snapshot.hpp)."""

    _fields_ = (("store", StoreView), *words("position"))


class QueryArgs(ctypes.Structure):
    """Neighborhoods to look up (detail/store_view.hpp)."""

    _fields_ = words("node t before before_all size row since_t since_eid")


class SampleParams(ctypes.Structure):
    """Parameters that a kernel reads from device memory (cuda/snapshot.hpp)."""

    _fields_ = words("before_all key size since_t since_eid")


class SamplerArgs(ctypes.Structure):
    """Sampler arguments (detail/store_view.hpp); `strategy` is a number of `_core.Strategy`."""

    _fields_ = (("strategy", ctypes.c_int32), *words("key span relations"))


class NeighborRows(ctypes.Structure):
    """Output of sampling (detail/store_view.hpp)."""

    _fields_ = words("node t eid count k")


class FreeItems(ctypes.Structure):
    """Free items by size class (cuda/insertion.hpp)."""

    _fields_ = words("items begin count")


class Fresh(ctypes.Structure):
    """Memory never used before (cuda/insertion.hpp)."""

    _fields_ = words("line stride rooms max_capacity")


class FreshCursor(ctypes.Structure):
    """Cursor into fresh memory (cuda/insertion.hpp)."""

    _fields_ = words("line rooms finished")


class Totals(ctypes.Structure):
    """Memory that a batch takes (cuda/insertion.hpp)."""

    _fields_ = words("runs blocks entries rooms given_up max_blocks")


class Insertion(ctypes.Structure):
    """A batch being inserted (cuda/insertion.hpp)."""

    _fields_ = (
        ("store", StoreView),
        *words(
            "heads src dst t first_eid num_pairs sides node pair "
            "run begin plans ranks demand needed"
        ),
        ("free", FreeItems),
        ("fresh", Fresh),
        *words("places dirs given_up given_class cursor slab totals snapshot"),
        ("next", Snapshot),
    )


class Version(ctypes.Structure):
    """A change of a node's past (detail/store_view.hpp)."""

    _fields_ = words("changed_at change older merged_at")


class Changing(ctypes.Structure):
    """A change of the past being applied (cuda/store.cu)."""

    _fields_ = (
        ("store", StoreView),
        *words("heads num_nodes node edits begin puts_in min_t max_count demand blocks"),
        ("fresh", Fresh),
        ("version", Version),
    )


class Compacting(ctypes.Structure):
    """A compaction (cuda/store.cu)."""

    _fields_ = (("store", StoreView), *words("heads live sparse demand moves"), ("fresh", Fresh))

"""The structs that kernels take by value, field by field as the headers have them."""

from __future__ import annotations

import ctypes
from ctypes import c_int64 as _number
from ctypes import c_uint64 as _word


class StoreView(ctypes.Structure):
    """The store as its readers find it (detail/store_view.hpp)."""

    _fields_ = (
        ("heads", _word),
        ("num_nodes", _number),
        ("chunks", _word),
        ("tiers", _word),
        ("types", _word),
        ("change", _number),
        ("reads", _word),
        ("first_part", _number),
        ("num_other_parts", _number),
    )


class Snapshot(ctypes.Structure):
    """A store and the log position up to which it is published (cuda/snapshot.hpp)."""

    _fields_ = (("store", StoreView), ("position", _number))


class QueryArgs(ctypes.Structure):
    """Neighborhoods to look up (detail/store_view.hpp)."""

    _fields_ = (
        ("node", _word),
        ("t", _word),
        ("before", _word),
        ("before_all", _number),
        ("size", _number),
        ("row", _word),
    )


class SampleParams(ctypes.Structure):
    """What a kernel reads from device memory instead of its arguments (cuda/snapshot.hpp)."""

    _fields_ = (("before_all", _number), ("key", _word), ("size", _number))


class SamplerArgs(ctypes.Structure):
    """What a call asks for (detail/sampler.hpp); `strategy` is a number of `_core.Strategy`."""

    _fields_ = (
        ("strategy", ctypes.c_int32),
        ("key", _word),
        ("span", _number),
        ("types", _word),
    )


class NeighborRows(ctypes.Structure):
    """Where the answers go (detail/store_view.hpp)."""

    _fields_ = (
        ("node", _word),
        ("t", _word),
        ("eid", _word),
        ("count", _word),
        ("k", _number),
    )


class FreeItems(ctypes.Structure):
    """What is free, by size class (cuda/insertion.hpp)."""

    _fields_ = (("items", _word), ("begin", _word), ("count", _word))


class Fresh(ctypes.Structure):
    """Memory never used before (cuda/insertion.hpp)."""

    _fields_ = (
        ("line", _number),
        ("stride", _number),
        ("rooms", _word),
        ("max_capacity", _number),
    )


class FreshCursor(ctypes.Structure):
    """Where fresh memory goes on (cuda/insertion.hpp)."""

    _fields_ = (("line", _number), ("rooms", _word), ("finished", _word))


class Totals(ctypes.Structure):
    """What a batch takes (cuda/insertion.hpp)."""

    _fields_ = (
        ("runs", _number),
        ("blocks", _number),
        ("entries", _number),
        ("rooms", _number),
        ("given_up", _number),
        ("max_blocks", _number),
    )


class Insertion(ctypes.Structure):
    """A batch on its way into the store (cuda/insertion.hpp)."""

    _fields_ = (
        ("store", StoreView),
        ("heads", _word),
        ("src", _word),
        ("dst", _word),
        ("t", _word),
        ("first_eid", _number),
        ("num_pairs", _number),
        ("sides", _number),
        ("node", _word),
        ("pair", _word),
        ("run", _word),
        ("begin", _word),
        ("plans", _word),
        ("ranks", _word),
        ("demand", _word),
        ("needed", _word),
        ("free", FreeItems),
        ("fresh", Fresh),
        ("places", _word),
        ("dirs", _word),
        ("given_up", _word),
        ("given_class", _word),
        ("cursor", _word),
        ("slab", _word),
        ("totals", _word),
        ("snapshot", _word),
        ("next", Snapshot),
    )


class Version(ctypes.Structure):
    """A change of a node's past (detail/store_view.hpp)."""

    _fields_ = (
        ("changed_at", _number),
        ("change", _number),
        ("older", _word),
        ("merged_at", _number),
    )


class Changing(ctypes.Structure):
    """A change of the past on its way into the store (cuda/change.cu)."""

    _fields_ = (
        ("store", StoreView),
        ("heads", _word),
        ("num_nodes", _number),
        ("node", _word),
        ("edits", _word),
        ("begin", _word),
        ("puts_in", _number),
        ("min_t", _number),
        ("max_count", _number),
        ("demand", _word),
        ("blocks", _word),
        ("fresh", Fresh),
        ("version", Version),
    )


class Compacting(ctypes.Structure):
    """A compaction (csrc/cuda/compact.cu)."""

    _fields_ = (
        ("store", StoreView),
        ("heads", _word),
        ("live", _word),
        ("sparse", _word),
        ("demand", _word),
        ("moves", _word),
        ("fresh", Fresh),
    )

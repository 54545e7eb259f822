from enum import Enum

import numpy as np
from numpy.typing import NDArray

class Direction(Enum):
    undirected = ...
    directed = ...
    bipartite = ...

class EventLog:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def has_label(self) -> bool: ...
    def append(self, src: int, dst: int, t: int, label: int, size: int) -> int: ...
    def position(self, t: int) -> int: ...
    def columns(
        self, start: int, stop: int
    ) -> tuple[
        NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None
    ]: ...
    def gather(self, eid: int, size: int, src: int, dst: int, t: int, label: int) -> None: ...

class TierStats:
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_entries(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class StoreStats:
    @property
    def num_entries(self) -> int: ...
    @property
    def max_blocks(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def upper(self) -> TierStats: ...
    @property
    def lower(self) -> TierStats: ...

class TemporalGraph:
    def __init__(self, direction: Direction, upper_budget: int) -> None: ...
    def check(self, src: int, dst: int, t: int, label: int, size: int) -> None: ...
    def append(self, src: int, dst: int, t: int, label: int, size: int) -> int: ...
    @property
    def log(self) -> EventLog: ...
    @property
    def position(self) -> int: ...
    def stats(self) -> StoreStats: ...

def recent_neighbors(
    graph: TemporalGraph,
    nodes: int,
    t: int,
    before: int,
    before_all: int,
    size: int,
    k: int,
    out_nodes: int,
    out_t: int,
    out_eid: int,
    out_count: int,
) -> None: ...
def uniform_neighbors(
    graph: TemporalGraph,
    nodes: int,
    t: int,
    before: int,
    before_all: int,
    size: int,
    k: int,
    key: int,
    out_nodes: int,
    out_t: int,
    out_eid: int,
    out_count: int,
) -> None: ...

class StaticCsr:
    def __init__(self, direction: Direction) -> None: ...
    def build(self, src: int, dst: int, t: int, size: int) -> None: ...
    def insert(self, src: int, dst: int, t: int, size: int) -> None: ...
    @property
    def num_entries(self) -> int: ...
    def recent(
        self,
        nodes: int,
        t: int,
        before: int,
        size: int,
        k: int,
        out_nodes: int,
        out_t: int,
        out_eid: int,
        out_count: int,
    ) -> None: ...
    def uniform(
        self,
        nodes: int,
        t: int,
        before: int,
        size: int,
        k: int,
        key: int,
        out_nodes: int,
        out_t: int,
        out_eid: int,
        out_count: int,
    ) -> None: ...

# Tensors cross as addresses (`x.data_ptr()`, or a pyarrow buffer's); sizes are counts of elements.
# A column of ids crosses as two: integers and 0, or the offsets of strings and their bytes.

class _IdMap:
    def __init__(self, bipartite: bool) -> None: ...
    def encode(
        self, src: tuple[int, int], dst: tuple[int, int], size: int, src_out: int, dst_out: int
    ) -> None: ...
    def find(self, ids: tuple[int, int], size: int, dst: bool, out: int) -> None: ...
    def restore(self, ids: tuple[int, int], sides: int, size: int) -> None: ...
    def copy_sides(self, out: int) -> None: ...
    def __len__(self) -> int: ...

class IntIdMap(_IdMap):
    def decode(self, nodes: int, size: int, out: int) -> None: ...

class StringIdMap(_IdMap):
    def decode_offsets(self, nodes: int, size: int, out: int) -> None: ...
    def decode_bytes(self, nodes: int, size: int, out: int) -> None: ...

def set_num_threads(num_threads: int) -> None: ...
def num_threads() -> int: ...

# plan: csrc/bindings/bind_plan.cpp. Arguments named after a column are addresses (`data_ptr()`).
def mix64(x: int) -> int: ...
def gather_rows(rows: int, dim: int, size: int, id: int, n: int, out: int) -> None: ...
def draw_replay(begin: int, end: int, half_life: float, key: int, num: int, out: int) -> int: ...

class NegativeRequest:
    def __init__(
        self,
        key: int,
        src: int,
        dst: int,
        cut: int,
        size: int,
        num: int,
        limit: int,
        pairs_from: int,
    ) -> None: ...

class PairIndex:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def append(self, src: int, dst: int, size: int) -> None: ...
    def num_destinations(self, before: int) -> int: ...
    def num_pairs(self, before: int) -> int: ...
    def draw_destinations(self, request: NegativeRequest, out_dst: int) -> int: ...
    def draw_pairs(self, request: NegativeRequest, out_src: int, out_dst: int) -> int: ...

class FrontierIn:
    def __init__(self, node: int, t: int, start: int, size: int) -> None: ...

class FrontierOut:
    def __init__(self, node: int, t: int, start: int) -> None: ...

class NeighborsIn:
    def __init__(self, node: int, t: int, k: int) -> None: ...

class BlockOut:
    def __init__(self, target: int, neighbor: int, mask: int, dt: int) -> None: ...

def unique_queries(queries: FrontierIn, out: FrontierOut, row: int) -> int: ...
def expand_frontier(
    targets: FrontierIn,
    neighbors: NeighborsIn,
    seconds_per_tick: float,
    below: FrontierOut,
    block: BlockOut,
) -> int: ...

class EventList:
    def __init__(self, eid: int, size: int, row: int) -> None: ...

def unique_events(lists: list[EventList], out: int) -> int: ...

class Attention:
    def __init__(
        self,
        *,
        num_targets: int,
        k: int,
        num_heads: int,
        query: int,
        shared_query: bool,
        below: int,
        num_below: int,
        h_dim: int,
        neighbor: int,
        edge_table: int,
        x_dim: int,
        edge_row: int,
        mask: int,
        dt: int,
        frequency: int,
        time_dim: int,
        keep: int,
    ) -> None: ...

def attend(attention: Attention, *, weight: int, inputs: int, total: int) -> None: ...
def attend_backward(
    attention: Attention,
    *,
    weight: int,
    grad_inputs: int,
    grad_total: int,
    grad_query: int,
    grad_below: int,
) -> None: ...

class Gru:
    def __init__(
        self, *, num_rows: int, dim: int, memory: int, memory_stride: int, own: int
    ) -> None: ...

def gru_forward(gru: Gru, *, gates: int, out: int) -> None: ...
def gru_backward(
    gru: Gru, *, gates: int, grad_out: int, grad_gates: int, grad_own: int
) -> None: ...

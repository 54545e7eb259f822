"""The native core: it takes tensors on the CPU, and refuses what does not fit (csrc/bindings)."""

from enum import Enum
from typing import Any, Final, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Buffer

Direction = Enum("Direction", "undirected directed bipartite")

class GrowingBytes:
    def __init__(self, item_bytes: int) -> None: ...
    def grow(self, size: int) -> NDArray[np.uint8]: ...
    def drop(self, end: int) -> None: ...
    def map_file(self, begin: int, end: int, fd: int, offset: int) -> bool: ...

LogColumn = Enum("LogColumn", "src dst t relation")

class EventLog:
    def map_file(self, column: LogColumn, begin: int, end: int, fd: int, offset: int) -> bool: ...
    def __len__(self) -> int: ...
    num_nodes: Final[int]
    has_relation: Final[bool]
    first: Final[int]
    clock: Final[int]
    def forget(self, first: int) -> None: ...
    def since(self, first: int) -> tuple[int, int]: ...
    def position(self, t: int) -> int: ...
    def positions(self, t: Tensor, out: Tensor) -> None: ...
    def check_eids(self, eid: Tensor) -> None: ...
    def columns(
        self, start: int, stop: int
    ) -> tuple[
        NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None
    ]: ...
    def gather(
        self, eid: Tensor, src: Tensor, dst: Tensor, t: Tensor, relation: Tensor | None
    ) -> None: ...

class TierStats:
    num_blocks: Final[int]
    num_entries: Final[int]
    capacity: Final[int]
    bytes: Final[int]

class StoreStats:
    num_entries: Final[int]
    max_blocks: Final[int]
    bytes: Final[int]
    reads: Final[tuple[int, int]]
    device: Final[TierStats]
    host: Final[TierStats]

class TemporalGraph:
    def __init__(
        self,
        direction: Direction,
        device_budget: int,
        first_part: int,
        num_parts: int,
        first: int = 0,
    ) -> None: ...
    def check(
        self, src: Tensor, dst: Tensor, t: Tensor, relation: Tensor | None, allow_late: bool
    ) -> None: ...
    def append(
        self, src: Tensor, dst: Tensor, t: Tensor, relation: Tensor | None, allow_late: bool
    ) -> int: ...
    def record(self, src: Tensor, dst: Tensor, t: Tensor, relation: Tensor | None) -> int: ...
    def check_relations(self) -> None: ...
    def remove(self, eid: Tensor) -> int: ...
    def remove_pair(self, src: int, dst: int) -> int: ...
    def remove_node(self, v: int) -> int: ...
    def retain(self, min_t: int, max_count: int) -> int: ...
    def compact(self) -> None: ...
    def forget(self, first: int, log_first: int) -> None: ...
    log: Final[EventLog]
    position: Final[int]
    def stats(self) -> StoreStats: ...

Strategy = Enum("Strategy", "recent uniform window decayed")

def sample_neighbors(
    graph: TemporalGraph,
    strategy: Strategy,
    key: int,
    span: int,
    relations: Tensor | None,
    nodes: Tensor,
    t: Tensor,
    as_of: Tensor | None,
    as_of_all: int,
    row: Tensor | None,
    since: int,
    out_nodes: Tensor,
    out_t: Tensor,
    out_eid: Tensor,
    out_count: Tensor,
) -> None: ...

# ids: csrc/bindings/bind_id_map.cpp. A column is integers and None, or the offsets of strings and
# their bytes.
_Array: TypeAlias = Tensor | Buffer | NDArray[Any]
_Column: TypeAlias = tuple[_Array, _Array | None]

IdColumn = Enum("IdColumn", "keys ends bytes sides")

class _IdMap:
    def __init__(self, bipartite: bool) -> None: ...
    def encode(self, src: _Column, dst: _Column, src_out: Tensor, dst_out: Tensor) -> None: ...
    def find(self, ids: _Column, dst: bool, out: Tensor) -> None: ...
    def restore(self, ids: _Column, sides: Tensor) -> None: ...
    def num_items(self, column: IdColumn) -> int: ...
    def copy(self, column: IdColumn, begin: int, out: Tensor) -> None: ...
    def map_file(self, column: IdColumn, begin: int, end: int, fd: int, offset: int) -> bool: ...
    def __len__(self) -> int: ...

class IntIdMap(_IdMap):
    def decode(self, nodes: Tensor, out: Tensor) -> None: ...

class StringIdMap(_IdMap):
    def decode_offsets(self, nodes: Tensor, out: Tensor) -> None: ...
    def decode_bytes(self, nodes: Tensor, out: Tensor) -> None: ...

def may_have_other_spellings(text: Buffer, separator: str) -> bool: ...
def set_num_threads(num_threads: int) -> None: ...
def num_threads() -> int: ...
def simd_levels() -> list[str]: ...
def simd_level() -> str: ...
def set_simd_level(level: str) -> None: ...

# plan: csrc/bindings/bind_plan.cpp
def derive_key(*words: int) -> int: ...
def draw_replay(begin: int, end: int, half_life: float, key: int, out: Tensor) -> int: ...

class PairIndex:
    def __init__(
        self, log: EventLog | None = None, first_part: int = 0, num_parts: int = ..., first: int = 0
    ) -> None: ...
    def __len__(self) -> int: ...
    def append(self, src: Tensor, dst: Tensor, type: Tensor | None = None) -> None: ...
    def read_pairs(self, end: int) -> None: ...
    def find_pairs(self, end: int, is_first: Tensor) -> None: ...
    def mark_pairs(self, end: int, is_first: Tensor) -> None: ...
    num_pair_events: Final[int]
    def types(self, nodes: Tensor, out: Tensor) -> None: ...
    def num_destinations(self, before: int) -> int: ...
    def num_pairs(self, before: int) -> int: ...
    def destinations(self, before: int, out: Tensor) -> None: ...
    def destinations_of(self, src: int, before: int) -> list[int]: ...
    def draw_destinations(
        self,
        key: int,
        src: Tensor,
        dst: Tensor,
        cut: Tensor,
        limit: int,
        collide: bool,
        mask: Tensor | None,
        out_dst: Tensor,
    ) -> int: ...
    def draw_pairs(
        self,
        key: int,
        src: Tensor,
        dst: Tensor,
        cut: Tensor,
        limit: int,
        pairs_from: int,
        replace: bool,
        out_src: Tensor,
        out_dst: Tensor,
    ) -> int: ...
    def draw_lists(
        self,
        key: int,
        src: Tensor,
        dst: Tensor,
        cut: Tensor,
        limit: int,
        hard: Tensor,
        out_dst: Tensor,
        out_log_q: Tensor,
    ) -> None: ...

CountOf = Enum(
    "CountOf",
    "pair reverse src dst src_as_dst dst_as_src transition transition_row window window_row "
    "continuation continuation_all src_new dst_new dst_first src_switch dst_switch "
    "own_transition covisit pair_relation src_relation dst_relation relation all",
)

Clock = Enum("Clock", "seconds events source")

Op = Enum(
    "Op",
    "num age decayed rank since loop constant add subtract multiply divide minimum maximum "
    "at_least where exp log log1p log2",
)

class EventCounts:
    def __init__(
        self,
        log: EventLog,
        counts: list[tuple[CountOf, int, float, Clock]],
        steps: list[tuple[Op, int, int, int, float]],
        results: list[int],
        finds_latest: bool = False,
        seconds_per_tick: float = 1.0,
        max_keys: int = ...,
        first_part: int = 0,
        num_parts: int = ...,
        first: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    bytes: Final[int]
    num_facts: Final[int]
    continues: Final[bool]
    num_found: Final[int]
    loads: Final[list[int]]
    def read_sources(self, end: int, facts: Tensor) -> None: ...
    def read_others(self, end: int, facts: Tensor, is_new: Tensor) -> None: ...
    def read_continuations(self, end: int, is_new: Tensor) -> None: ...
    def answer_sources(self, rows: Tensor, found: Tensor) -> None: ...
    def find_keys(self, rows: Tensor, found: Tensor, keys: Tensor, parts: Tensor) -> None: ...
    def answer_keys(self, num: Tensor, asked: Tensor, out: Tensor) -> None: ...
    def evaluate(self, rows: Tensor, found: Tensor, others: Tensor, out: Tensor) -> None: ...
    def read_upto(self, position: int) -> None: ...
    def answer(
        self,
        src: Tensor,
        dst: Tensor,
        negative_src: Tensor | None,
        negative_dst: Tensor,
        t: Tensor,
        limit: Tensor,
        out: Tensor,
        relation: Tensor | None = None,
    ) -> None: ...
    def latest_destinations(
        self, src: Tensor, cut: Tensor, of_source: Tensor, of_all: Tensor
    ) -> None: ...
    def last_events(self, src: Tensor, dst: Tensor, cut: Tensor, out: Tensor) -> None: ...

# plan: csrc/bindings/bind_preparer.cpp
class SlabPool:
    def __init__(self, most_free: int, allocate: object) -> None: ...
    num_used: Final[int]
    num_free: Final[int]

class Slab(Buffer):
    def __init__(self, pool: SlabPool) -> None: ...

def padded_rows(rows: int) -> int: ...
def choose_positions(begin: int, every: int, out: Tensor) -> None: ...

class Preparer:
    def __init__(
        self,
        graph: TemporalGraph,
        pairs: PairIndex,
        counts: EventCounts | None,
        start: int,
        batch_size: int,
        fanouts: list[int],
        strategy: Strategy,
        span: int,
        sees_all_before: bool,
        with_memory: bool,
        with_nodes: bool,
        seconds_per_tick: float,
        num_negatives: int,
        draws_pairs: bool,
        cut: int,
        pairs_from: int,
        collide: bool,
        replace: bool,
        half_life: float,
    ) -> None: ...
    def prepare(
        self,
        slab: Slab,
        negatives_key: int,
        replay_key: int,
        negative_mask: Tensor | None,
        hop_keys: list[int],
        begin: int,
        end: int,
        since: int,
        only: Tensor | None,
        replay_begin: int,
        num_replay: int,
        reads_edges: bool,
        edge_x: Tensor | None,
        reads_nodes: bool,
        node_x: Tensor | None,
        node_end: int,
        is_padded: bool,
        rows: Tensor | None,
    ) -> list[int]: ...

# metrics: csrc/bindings/bind_metrics.cpp
def rank_scores(positive: Tensor, negative: Tensor, tolerance: float, out: Tensor) -> None: ...
def compare_scores(positive: Tensor, negative: Tensor, tolerance: float) -> tuple[float, float]: ...
def unique_queries(
    node: Tensor,
    t: Tensor,
    position: Tensor | None,
    out_node: Tensor,
    out_t: Tensor | None,
    out_position: Tensor | None,
    row: Tensor,
) -> int: ...
def expand_frontier(
    node: Tensor,
    t: Tensor,
    position: Tensor | None,
    neighbor_node: Tensor,
    neighbor_t: Tensor,
    seconds_per_tick: float,
    out_node: Tensor,
    out_t: Tensor | None,
    out_position: Tensor | None,
    target: Tensor,
    neighbor: Tensor,
    mask: Tensor,
    dt: Tensor,
) -> int: ...
def unique_events(eids: list[Tensor], rows: list[Tensor], out: Tensor) -> list[int]: ...

# nn: csrc/bindings/bind_layers.cpp
def version_slots(
    *,
    clock: Tensor,
    link: Tensor,
    origin: Tensor,
    head: Tensor,
    counts: tuple[int, int],
    num_events: int,
    node: Tensor,
    position: Tensor,
    out: Tensor,
) -> None: ...
def version_links(
    *,
    clock: Tensor,
    link: Tensor,
    origin: Tensor,
    head: Tensor,
    counts: tuple[int, int],
    num_events: int,
    node: Tensor,
    out: Tensor,
) -> None: ...
def multiply(*, a: Tensor, b: Tensor, out: Tensor, prior: Tensor | None, rounds: bool) -> None: ...
def has_bfloat16() -> bool: ...
def keep_factors(*, key: Tensor, rate: float, out: Tensor) -> None: ...
def gelu_dropout(*, key: Tensor, rate: float, x: Tensor, out: Tensor) -> None: ...

class AttentionInputs(TypedDict):
    """Inputs of both passes, for type checkers alone; see tgflow/attention.hpp for shapes."""

    query: Tensor
    below: Tensor | None
    neighbor: Tensor
    edge_table: Tensor | None
    edge_row: Tensor | None
    mask: Tensor
    dt: Tensor
    frequency: Tensor
    keep: Tensor | None

def attend(
    *, weight: Tensor, inputs: Tensor, total: Tensor, **given: Unpack[AttentionInputs]
) -> None: ...
def attend_projected(
    *,
    query_row: Tensor,
    query: Tensor,
    time_query: Tensor,
    below: Tensor | None,
    neighbor: Tensor,
    edges: Tensor | None,
    edge_row: Tensor | None,
    bias: Tensor,
    eid: Tensor,
    mask: Tensor,
    dt: Tensor,
    frequency: Tensor,
    time: Tensor,
    value: Tensor,
) -> None: ...
def attend_backward(
    *,
    weight: Tensor,
    grad_inputs: Tensor,
    grad_total: Tensor,
    grad_query: Tensor,
    grad_below: Tensor | None,
    **given: Unpack[AttentionInputs],
) -> None: ...

# tables: csrc/bindings/bind_tables.cpp. Rows are tensors of whatever type, by their bytes.
class ReservedMemory(Buffer):
    def __init__(self, bytes: int) -> None: ...
    def __len__(self) -> int: ...
    committed: Final[int]
    def commit(self, bytes: int) -> None: ...

class DamagedFile(OSError): ...

class RowFile:
    def __init__(self, path: str, row_bytes: int, kind: str) -> None: ...
    def __len__(self) -> int: ...
    def append(self, rows: Tensor) -> None: ...
    def sync(self) -> None: ...
    def settle(self) -> None: ...
    def truncate(self, size: int) -> None: ...

class RowRequest:
    def wait(self) -> None: ...
    is_done: Final[bool]

class RowReader:
    def __init__(self, file: RowFile, budget: int, wish: str) -> None: ...
    def start(self, id: Tensor, size: int, out: object) -> RowRequest: ...
    way: Final[str]
    buffer_bytes: Final[int]

def probe_reads(path: str) -> str: ...
def gather_rows(rows: Tensor, row_bytes: int, size: int, id: Tensor, out: Tensor) -> None: ...
def scatter_rows(rows: Tensor, row_bytes: int, size: int, id: Tensor, source: Tensor) -> None: ...

# plan: csrc/bindings/bind_cache.cpp
class Belady:
    def __init__(self, num_slots: int, contents: Tensor | None) -> None: ...
    num_slots: Final[int]
    num_batches: Final[int]
    num_accesses: Final[int]
    next_size: Final[int]
    bytes: Final[int]
    def observe(self, id: Tensor) -> None: ...
    def plan_next(self, id: Tensor, hit: Tensor, admit: Tensor) -> None: ...
    def contents(self, id: Tensor) -> None: ...

# cache: csrc/bindings/bind_cache.cpp
CachePolicy = Enum("CachePolicy", "lru lfu fifo static belady")

class CacheLookup:
    misses: Final[NDArray[np.int64]]

class ScheduleMismatch(RuntimeError): ...

class RowCache:
    def __init__(self, policy: CachePolicy, capacity: int, row_bytes: int) -> None: ...
    def look_up(self, id: Tensor, size: int) -> CacheLookup: ...
    def preload(self, id: Tensor, size: int) -> CacheLookup: ...
    def apply(
        self, planned: Tensor, hit: Tensor, admit: Tensor, id: Tensor, size: int
    ) -> CacheLookup: ...
    def append(self, first: int, rows: Tensor) -> None: ...
    def restore(self, id: Tensor, key: Tensor, size: int) -> CacheLookup: ...
    def snapshot(self, id: Tensor, key: Tensor) -> None: ...
    def finish(self, lookup: CacheLookup, rows: Tensor, out: Tensor | None) -> None: ...
    def truncate(self, size: int) -> None: ...
    def counts(self) -> list[int]: ...
    def reset_counts(self) -> None: ...
    def bytes(self) -> int: ...

# reuse in training: csrc/bindings/bind_cache.cpp
class ReuseMap:
    SLOT_BYTES: int
    def __init__(self, capacity: int) -> None: ...
    def __len__(self) -> int: ...
    bytes: Final[int]
    def decide(
        self,
        batch: int,
        nodes: Tensor,
        t: Tensor,
        may_recur: Tensor,
        staleness: int,
        refresh: float,
        key: int,
        seconds_per_tick: float,
        order: Tensor,
        slot: Tensor,
    ) -> tuple[int, int, int, int]: ...
    def restore(self, batch: Tensor, nodes: Tensor, t: Tensor, slot: Tensor) -> None: ...
    def clear(self) -> None: ...

"""Calls native functions with every wrong argument value and collects the results."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow import _core

REFUSALS = (ValueError, TypeError, IndexError)
MIN, MAX = -(2**63), 2**63 - 1
FOR_TESTS = {"FileOp", "inject_fault"}
"""Functions that only development builds have."""


@dataclass
class Call:
    """A valid call, and constraints of its arguments."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Valid half-open range of the elements of int64 tensors."""
    refused: dict[str, list[Any]] = field(default_factory=dict)
    """Values of a number or list that must be refused."""
    marks: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of an argument and a word: it is `optional`, or a tensor of `any_type` (read as bytes),
    `any_float`, `any_length` or `any_width` (of its own), `any_shape` or `any_strides`."""

    def has(self, name: str, *marks: str) -> bool:
        """Return whether an argument has one of the marks."""
        return any((name, mark) in self.marks for mark in marks)


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def rows_of(size: int) -> Tensor:
    return torch.ones(size, 4)


def letters() -> Tensor:
    return torch.tensor([97, 98, 99], dtype=torch.uint8)


def grown() -> Any:
    """Return a graph of 3 events."""
    graph = _core.TemporalGraph(_core.Direction.undirected, MAX, 0, 64)
    columns = {"src": ids(0, 1, 2), "dst": ids(3, 4, 5), "t": ids(1, 2, 3)}
    graph.append(**columns, relation=ids(0, 1, 2), allow_late=False)
    return graph


def grown_bytes() -> Any:
    held = _core.GrowingBytes(grown().log, 4)
    held.grow(3)
    return held


def known_pairs() -> Any:
    index = _core.PairIndex(grown().log)
    index.append(ids(0, 1, 2), ids(3, 4, 5))
    index.read_pairs(3)
    return index


COUNT = (_core.CountOf.window, 1, 1.0, _core.Clock.events)
DECAYED, WHERE = (_core.Op.decayed, 0, 0, 0, 0.0), (_core.Op.where, 0, 0, 0, 0.0)
COUNTS = [
    (_core.CountOf.pair, 1, 2.0, _core.Clock.seconds),
    (_core.CountOf.window, 2, 0.0, _core.Clock.seconds),
]
STEPS = [(_core.Op.num, 1, 0, 0, 0.0), DECAYED, (_core.Op.add, 0, 1, 0, 0.0)]
PLAIN = (COUNT[0], 1, 0.0, COUNT[3])
WRONG_COUNTS = [
    *((COUNT[0], depth, 1.0, COUNT[3]) for depth in (0, 65, -1, 2**70)),
    *((COUNT[0], 1, value, COUNT[3]) for value in (-1.0, float("nan"), float("inf"))),
    *((_core.CountOf.covisit, 33, 0.0, COUNT[3]), (COUNT[0], 1, 1.0, _core.Clock.source)),
    *(COUNT[:3], 7),
]
WRONG_STEPS = [
    *((op, i, 0, 0, 0.0) for op in (_core.Op.num, _core.Op.decayed) for i in (1, 2, -1, 2**63)),
    *((op, 0, 0, 0, 0.0) for op in (_core.Op.rank, _core.Op.since)),
    *(WHERE, DECAYED[:4], (7, 0, 0, 0, 0.0), None),
]
WRONG_CHOICES = [(1, 0, 0), (0, -1, 0), (0, 0, 2**40)]
NOT_COUNTS = [*([COUNT, bad] for bad in WRONG_COUNTS), [], [PLAIN]]
NOT_STEPS = [
    *([bad] for bad in WRONG_STEPS),
    *([DECAYED, (_core.Op.where, *bad, 0.0)] for bad in WRONG_CHOICES),
]


def known_counts(read: int = 3) -> Any:
    counts = _core.EventCounts(grown().log, COUNTS, STEPS, [0, 1, 2])
    counts.read_upto(read)
    return counts


def counts_of(*kinds: str, **more: Any) -> Any:
    """Return counts of these kinds that have read all events."""
    asked = [(getattr(_core.CountOf, kind), 1, 0.0, _core.Clock.seconds) for kind in kinds]
    counts = _core.EventCounts(grown().log, asked, [], [], **more)
    counts.read_upto(3)
    return counts


def new_facts(counts: Any) -> Tensor:
    return torch.full((3, counts.num_facts), -1, dtype=torch.int32)


def facts_read(counts: Any) -> Tensor:
    """Return the facts of three events, once their sources were read."""
    facts = new_facts(counts)
    counts.read_sources(3, facts)
    return facts


def is_new_read(counts: Any) -> Tensor:
    """Return which of three events are new, once all but continuations was read."""
    is_new = torch.zeros(3, dtype=torch.uint8)
    counts.read_others(3, facts_read(counts), is_new)
    return is_new


def pairs_asked() -> Tensor:
    """Return columns of pairs: ends, times, cut-offs and relations."""
    columns = ids(0, 1, 2), ids(3, 4, 5), ids(0, MIN, MAX), ids(0, 3, 1), ids(0, 2, 1)
    return torch.stack(columns)


def ages() -> Any:
    count = (_core.CountOf.pair, 1, 2.0, _core.Clock.seconds)
    return partial(_core.EventCounts, counts=[count], steps=[(_core.Op.age, 0, 0, 0, 0.0)])


RULES: dict[str, Any] = {
    "start": 0, "batch_size": 2, "fanouts": [2, 1], "strategy": _core.Strategy.recent, "span": 1,
    "sees_all_before": False, "with_memory": True, "with_nodes": True, "seconds_per_tick": 1.0,
    "num_negatives": 2, "every": 1, "draws_pairs": False, "cut": -1, "pairs_from": 0,
    "collide": True, "replace": True, "half_life": 1.0, "has_float_counts": False,
}  # fmt: skip


def preparer() -> Any:
    graph = grown()
    return _core.Preparer(graph.log, graph, known_pairs(), ages()(graph.log, results=[0]), **RULES)


def requested() -> Any:
    ask: dict[str, Any] = {
        "key": 1, "slice_key": None, "negative_dst": None, "negative_src": None, "log_q": None,
        "is_drawn_only": True, "with_counts": True, "begin": 0, "end": 2, "since": 0, "only": None,
        "replay_begin": 0, "num_replay": 0, "reads_edges": False, "edge_x": None,
        "reads_nodes": False, "node_x": None, "node_end": 6, "is_padded": False, "rows": None,
    }  # fmt: skip
    return preparer().request(**ask)


def prepared(**asked: Any) -> None:
    """Prepare a batch: values in columns are checked then."""
    _core.Slab(_core.SlabPool(2, None)).fill([preparer().request(**asked)], [])


def known_ids(kind: str) -> Any:
    """Return a map of 3 ids."""
    known, is_text = getattr(_core, kind)(True), kind == "StringIdMap"
    column = (ids(0, 1, 2, 3), letters()) if is_text else (ids(7, 8, 9), None)
    known.encode(column, column, ids(0, 0, 0), ids(0, 0, 0))
    return known


FOLDER = tempfile.TemporaryDirectory()
_names = itertools.count()


def new_path() -> str:
    return f"{FOLDER.name}/{next(_names)}"


def new_file() -> Any:
    """Return a file of 5 rows."""
    file = _core.RowFile(new_path(), 16, "float32 [4]")
    file.append(rows_of(5))
    return file


def cache(place: str = "lru") -> Any:
    return _core.RowCache(getattr(_core.CachePolicy, place), 4, 16)


def belady() -> Any:
    planner = _core.Belady(4, None)
    planner.observe(ids(0, 1, 2))
    return planner


def read_rows() -> Callable[..., Any]:
    reader = _core.RowReader(new_file(), 1 << 20, "auto")
    return lambda **x: reader.start(**x).wait()


def applied(**given: Any) -> None:
    try:
        cache("belady").apply(**given)
    except _core.ScheduleMismatch as error:  # a refusal too: of a plan for other ids
        raise ValueError(str(error)) from error


def unique_of_lists(eids: Any, rows: Any, out: Any) -> None:
    """The lists are tried as a whole: one of another length, dtype or kind among them."""
    _core.unique_events([eids], [rows], out)


KNOWN: dict[str, Any] = {
    **globals(),
    "core": _core,
    "NODE": (0, 2**31 - 1),
    "nan": float("nan"),
    "zeros": torch.zeros,
    "i64": partial(torch.zeros, dtype=torch.int64),
    "i32": partial(torch.zeros, dtype=torch.int32),
    "u8": partial(torch.zeros, dtype=torch.uint8),
    "f32": torch.ones,
    "f64": partial(torch.ones, dtype=torch.float64),
    "bools": partial(torch.ones, dtype=torch.bool),
}
"""Names of `CASES`."""
ENDS = "src=ids(0,1,2)|in:NODE dst=ids(3,4,5)|in:NODE"
LEARNED = (
    "(f64(3),f64(3,0),1,None),(f64(3),f64(4,2),1,None),(f64(3),f64(3,2),4,None),"
    "(f64(3),f64(3,2),1,bools(3,1)),(f64(3),)"
)
EVENTS = f"{ENDS} t=ids(9,9,10) relation=ids(0,1,2)"
DRAWN = f"key=1|not:-1 {ENDS} cut=ids(3,MIN,MAX) limit=3|not:-1,4,MAX"
END = "end=3|not:-1,2,4,MAX"
PARTS = "first_part=2|not:-1,4,64 num_parts=61|not:0,63,MAX"
FRONTIER = """node=ids(0,MIN,MAX) t=ids(5,5,6) position=ids(0,0,0)
  out_node=i64({0}) out_t=i64({0})|optional out_position=i64({0})|optional"""
VERSIONS = """clock=i64(5,4)+1 link=i64(5,3)-1 origin=i64(5,2)+1 head=i64(5)|any_length
  counts=(5,9)|not:(-1,9),(5,-1) num_events=50|not:-1 node=i64(3)+1|in:0,5"""
ATTENTION = """query=f32(2,3,7) neighbor=i64(3,2)|in:0,5 edge_table=f32(5,2)|any_length
  edge_row=i64(3,2)|in:0,5 mask=bools(3,2) dt=f32(3,2) frequency=f32(2) keep=f32(2,3,2)|optional
  weight=f32(2,3,2)"""
ID_MAP = """
{0}.__init__ bipartite=True
{0}.encode @known_ids("{0}") src={1} dst={1} src_out=ids(0,0,0) dst_out=ids(0,0,0)
{0}.find @known_ids("{0}") ids={1} dst=True out=ids(0,0,0)
{0}.restore @core.{0}(True) ids={1} sides=u8(3)
{0}.copy @known_ids("{0}") column=core.IdColumn.sides begin=4|not:-1,5,MAX-1
  out=u8(2)|any_length
{0}.num_items @known_ids("{0}") column=core.IdColumn.sides
{0}.map_file @known_ids("{0}") column=core.IdColumn.sides begin=1|not:-1,3
  end=2|not:0,7,MAX fd=0 offset=0|not:-1
"""
CASES = f"""
TemporalGraph.__init__ direction=core.Direction.directed device_budget=4096|not:-1
  first_part=20|not:-1,21,64 num_parts=44|not:0,45 first=5|not:-1,MAX folder='.'|optional
TemporalGraph.check @grown() {EVENTS} allow_late=False
TemporalGraph.append @grown() {EVENTS} allow_late=True
TemporalGraph.stage @grown() {EVENTS} allow_late=True rows=i64(4,3)|optional
TemporalGraph.remove @grown() eid=ids(0,2,1)|in:0,3|any_length
TemporalGraph.remove_pair @grown() src=MIN dst=MAX
TemporalGraph.retain @grown() min_t=MAX max_count=0|not:-1
TemporalGraph.forget @grown() first=2|not:-1,0,4,MAX log_first=1|not:-1,3,MAX
EventLog.position @grown().log t=MIN
EventLog.positions @grown().log t=ids(0,MIN,MAX) out=ids(0,0,0)
EventLog.since @grown().log first=3|not:-1,4,MAX
EventLog.forget @grown().log first=0|not:-1,4,MAX first_seen=3|not:-1,4,MAX
EventLog.check_eids @grown().log eid=ids(0,2,1)|in:0,3|any_length
EventLog.columns @grown().log start=1|not:-1,3,MAX stop=2|not:-1,0,4,MAX
EventLog.gather @grown().log eid=ids(0,2,1)|in:0,3 src=i64(3) dst=i64(3) t=i64(3)
  relation=i64(3)|optional
EventLog.map_file @grown().log column=core.LogColumn.t begin=0|not:-1,3
  end=2|not:-1,MAX fd=0 offset=0|not:-1
GrowingBytes.__init__ log=grown().log item_bytes=4|not:-1,0,9,MAX
GrowingBytes.grow @core.GrowingBytes(grown().log,4) size=3|not:-1,MAX
GrowingBytes.drop @core.GrowingBytes(grown().log,4) end=0|not:-1,1,MAX
GrowingBytes.map_file @grown_bytes() begin=0|not:-1,3 end=2|not:-1,4,MAX fd=0
  offset=0|not:-1
sample_neighbors graph=grown() strategy=core.Strategy.decayed key=1|not:-1 span=1|not:0,-1
  relations=i64(1024)-1|optional nodes=ids(0,MIN,MAX) t=ids(MAX,0,MIN) as_of=ids(2,-1,MAX)|optional
  as_of_all=2 row=ids(7,-1,MAX)|optional since=1|not:-1,4,MAX out_nodes=i64(3,2) out_t=i64(3,2)
  out_eid=i64(3,2) out_count=i32(3)
PairIndex.__init__ log=grown().log|optional {PARTS}
PairIndex.append @core.PairIndex() {ENDS} type=ids(0,1,1)|in:0,65536|optional
PairIndex.read @core.PairIndex(grown().log) end=3|not:-1,4,MAX type=ids(0,1,1)|in:0,65536|optional
PairIndex.read_pairs @core.PairIndex(grown().log) end=3|not:-1,4,MAX
PairIndex.find_pairs @core.PairIndex(grown().log) {END} is_first=u8(3)
PairIndex.mark_pairs @core.PairIndex(grown().log) {END} is_first=u8(3)
PairIndex.first_meetings @known_pairs() begin=0|not:-1,4 end=3|not:-1,4,MAX
PairIndex.types @known_pairs() nodes=ids(0,3,9)|in:NODE out=ids(0,0,0)
PairIndex.num_destinations @known_pairs() before=MIN
PairIndex.num_pairs @known_pairs() before=MAX
PairIndex.destinations @known_pairs() before=2|not:-1,4,MAX out=i64(2)
PairIndex.destinations_of @known_pairs() src=1|not:-1,2**31-1
  before=2|not:-1,4,MAX
PairIndex.draw_destinations @known_pairs() {DRAWN} collide=False
  mask=bools(3,2)|optional out_dst=i64(3,2)
PairIndex.draw_pairs @known_pairs() {DRAWN} pairs_from=-5 replace=False
  out_src=i64(3,2) out_dst=i64(3,2)
PairIndex.draw_lists @known_pairs() {DRAWN} hard=ids(-1,4,MAX).view(3,1)|any_width
  out_dst=i64(3,2) out_log_q=zeros(3,2)
EventCounts.__init__ log=grown().log counts=[COUNT]|not:*NOT_COUNTS
  steps=[DECAYED]|not:*NOT_STEPS results=[0]|not:[1],[-1],[2**62],["x"] finds_latest=True
  max_keys=5|not:-1,2**40 {PARTS} first=1|not:-1,4,MAX
EventCounts.read_upto @known_counts() position=3|not:-1,4,MAX
EventCounts.answer @known_counts() {ENDS} negative_src=i64(3,2)|in:NODE|optional
  negative_dst=i64(3,2)|in:NODE t=ids(0,MIN,MAX) limit=ids(0,3,1)|in:0,4 out=f64(3,3,3)
EventCounts.read_sources @known_counts(0) {END} facts=new_facts(it)
EventCounts.read_others @known_counts(0) {END} facts=facts_read(it) is_new=u8(3)
EventCounts.read_continuations @known_counts(0) {END} is_new=is_new_read(it)
EventCounts.answer_sources @known_counts() rows=pairs_asked()|in:0,2**16
  found=f64(3,3)
EventCounts.find_keys @known_counts() rows=pairs_asked()|in:0,2**16 found=f64(3,3)
  keys=i64(1,3) parts=i64(1,3)
EventCounts.answer_keys @known_counts() num=ids(3)|in:3,4
  asked=pairs_asked()[[0,1,3]]|in:0,4 out=f64(3,1)
EventCounts.evaluate @known_counts() rows=pairs_asked()|in:0,2**16 found=f64(3,3)
  others=f64(1,3,1) out=f64(3,3)
EventCounts.last_events @counts_of("pair","src","dst") {ENDS}
  cut=ids(0,3,1)|in:0,4 out=i64(3,4,2)|any_width
EventCounts.latest_destinations @counts_of(finds_latest=True)
  src=ids(0,1,2)|in:NODE cut=ids(0,3,1)|in:0,4 of_source=i64(3,2)|any_width
  of_all=i64(3,3)|any_width
unique_queries {FRONTIER.format(3)} row=ids(0,0,0)
expand_frontier {FRONTIER.format(9)} neighbor_node=ids(0,-1,7,8,MAX,0).view(3,2)
  neighbor_t=i64(3,2) seconds_per_tick=1.0|not:0.0,nan target=ids(0,0,0) neighbor=i64(3,2)
  mask=zeros(3,2).bool() dt=zeros(3,2)
unique_events =unique_of_lists eids=ids(0,1,2)|any_shape rows=ids(0,0,0)|any_shape out=i64(4)
SlabPool.__init__ most_free=2|not:-1,MAX allocate=u8|optional
Slab.__init__ pool=core.SlabPool(2,None)
Slab.fill @core.Slab(core.SlabPool(2,None)) requests=[requested()]|not:[None] found=[]
Slab.add @core.Slab(core.SlabPool(2,None)) column=ids(1,2)|any_type|any_length|any_shape
Preparer.__init__ @grown() log=it.log graph=it|optional pairs=known_pairs()
  counts=ages()(it.log,results=[0])|optional start=0|not:-1,2**40 batch_size=2|not:0,-1,MAX
  fanouts=[2,1]|not:[0],[-1],[2,2**40],["x"],[None] strategy=core.Strategy.recent span=1|not:0,-1
  sees_all_before=False with_memory=True with_nodes=True seconds_per_tick=1.0|not:0.0,nan
  num_negatives=2|not:0,-1,MAX every=1|not:0,-1 draws_pairs=False cut=-1|not:-2,2**40 pairs_from=0
  collide=True replace=True half_life=1.0|not:0.0,-1.0,nan has_float_counts=False
Preparer.request =prepared key=1|not:-1
  slice_key=2|not:-1|optional negative_dst=zeros(3,2).long()|optional|in:0,MAX
  negative_src=zeros(3,2).long()|optional log_q=zeros(3,2)|optional is_drawn_only=False
  with_counts=True begin=1|not:-1,3,MAX end=3|not:0,-1,1,4,MAX
  since=1|not:-1,2,MAX only=ids(1,2)|in:0,3|optional|any_length replay_begin=0|not:-1,2,MAX
  num_replay=1|not:-1,MAX reads_edges=True edge_x=f32(3,4)|optional|any_length|any_width
  reads_nodes=True node_x=f32(6,4)|optional|any_length|any_width node_end=6|not:-1 is_padded=True
  rows=ids(0,2)|in:0,3|optional|any_length
padded_rows rows=5|not:-1,2**60+1,MAX
draw_replay begin=0|not:-1,10,MAX end=9|not:-1,2**40,MAX half_life=2.0|not:0.0,-1.0,nan key=1|not:-1
  out=ids(0,0,0)|any_length
derive_key
{ID_MAP.format("IntIdMap", "(ids(7,8,9),None)")}
{ID_MAP.format("StringIdMap", "(ids(0,1,2,3),letters())")}
IntIdMap.hold_index_in @known_ids("IntIdMap") folder="."
StringIdMap.hold_index_in @known_ids("StringIdMap") folder="."
IntIdMap.decode @known_ids("IntIdMap") nodes=ids(0,1,2)|in:0,6 out=ids(0,0,0)
StringIdMap.decode_offsets @known_ids("StringIdMap") nodes=ids(0,1,2)|in:0,6
  out=ids(0,0,0,0)
StringIdMap.decode_bytes @known_ids("StringIdMap") nodes=ids(0,1,2)|in:0,6
  out=u8(3)|any_type
ReuseMap.__init__ capacity=4|not:0,-1,2**40
ReuseMap.decide @core.ReuseMap(4) batch=1 nodes=ids(0,1,2) t=ids(0,1,2) may_recur=bools(3)
  staleness=2 refresh=0.5 key=1|not:-1 seconds_per_tick=1.0|not:0.0 order=ids(0,0,0) slot=ids(0,0,0)
ReuseMap.restore @core.ReuseMap(4) batch=ids(0,0,0) nodes=ids(0,1,2) t=ids(0,1,2)
  slot=ids(0,1,3)|in:0,4
may_have_other_spellings text=b"1,2" separator=","
version_slots {VERSIONS} position=i64(3)+5 out=i64(3)
version_links {VERSIONS} out=i64(3,3)
keep_factors key=ids(7) rate=0.5|not:-1,1 out=f32(2,3)|any_length|any_width
gelu_dropout key=ids(7) rate=0.5|not:-1,1 x=f32(3) out=f32(3)
multiply a=f32(3,2)|any_strides b=f32(2,5)|any_strides out=f32(3,5) prior=f32(5)|optional
  rounds=False
attend {ATTENTION} below=f32(5,3)|any_length inputs=f32(2,3,7) total=f32(2,3)
attend_backward {ATTENTION} below=f32(5,3) grad_inputs=f32(2,3,7) grad_total=f32(2,3)
  grad_query=f32(2,3,7) grad_below=f32(5,3)
attend_projected query_row=i64(3)|in:0,5 query=f32(2,5,2) time_query=f32(2,5,2)
  below=f32(5,10)|optional|any_length neighbor=i64(3,2)|in:0,5 edges=f32(5,10)|optional|any_length
  edge_row=i64(3,2)|in:0,5 bias=f32(3) eid=i64(3,2)+1 mask=bools(3,2) dt=f32(3,2) frequency=f32(2)
  time=f32(3,4) value=f32(3,3)
choose_positions begin=3|not:-1,MAX every=5|not:0,-1 out=bools(3)|any_length
rank_scores positive=f64(3)|any_float|any_strides negative=f64(3,2)|any_width|any_float|any_strides
  tolerance=0.0 out=f64(3)
link_figures positive=f64(3)|any_float|any_strides negative=f64(3,2)|any_float|any_strides
  tolerance=0.0 mask=bools(3,2)|optional ranks=f64(3)|optional is_first=bools(3)|optional
  begin=3|not:-1,MAX every=5|not:0,-1 further=[("mrr_hist",1)]|not:[("x",3)],[("x",0)],["x"],[(1,1)]
  learned=(f64(3),f64(3,2),1,None)|optional|any_float|any_strides|not:{LEARNED}
are_finite values=[f64(3)]|not:[i64(3)],[None],["x"]
compare_scores positive=f64(3)|any_length|any_float|any_strides
  negative=f64(5)|any_length|any_float|any_strides tolerance=0.0
gather_rows rows=rows_of(5)|any_type|any_length row_bytes=16|not:-1,0,1,15,2**40,MAX
  size=5|not:-1,6,MAX id=ids(0,2,4)|in:MIN,5|any_shape out=rows_of(3)|any_type
scatter_rows rows=rows_of(5)|any_type|any_length row_bytes=16|not:-1,0,1,15,2**40,MAX
  size=5|not:-1,6,MAX id=ids(0,2,4)|in:0,5 source=rows_of(3)|any_type
RowFile.__init__ path=new_path() row_bytes=16|not:-1,0,2**40,MAX kind="float32"
RowFile.append @new_file() rows=rows_of(3)|any_type|any_length
RowFile.truncate @new_file() size=3|not:-1
RowFile.forget @new_file() first=3|not:-1
RowReader.__init__ file=new_file() budget=1<<20 wish="pread"
RowReader.start =read_rows() id=ids(0,2,4)|in:MIN,5|any_shape size=5|not:-1,4,6,MAX
  out=rows_of(3)|any_type
probe_reads path=__file__
ReservedMemory.__init__ bytes=1<<20|not:-1
ReservedMemory.drop @core.ReservedMemory(1<<20) bytes=4096|not:-1
ReservedMemory.clear @core.ReservedMemory(1<<20) begin=0|not:-1,1,MAX bytes=0|not:-1,1,MAX
ReservedMemory.commit @core.ReservedMemory(1<<20) bytes=4096|not:-1,(1<<20)+1,MAX
RowCache.__init__ policy=core.CachePolicy.lru capacity=4|not:-1,2**30,MAX row_bytes=16|not:-1,0
RowCache.look_up @cache() id=ids(0,2,4)|in:MIN,5|any_length size=5|not:-1,0,4
RowCache.preload @cache() id=ids(0,2,4)|in:MIN,5|any_length size=5|not:-1,0,4
RowCache.apply =applied planned=ids(0,2,4)|in:0,5 hit=i32(3)-1 admit=ids(0,1,-1).int()
  id=ids(0,2,4)|in:MIN,5|any_length size=5|not:-1,0,4
RowCache.finish @cache() lookup=it.look_up(ids(0,1,2),5) rows=rows_of(3)|any_type
  out=rows_of(3)|any_type
RowCache.append @cache() first=0|not:-1,MAX rows=rows_of(3)|any_type|any_length
RowCache.truncate @cache() size=3
RowCache.snapshot @cache() id=ids(0,1,-1,-1) key=ids(1,2,0,0)
RowCache.restore @cache() id=ids(0,1,-1,-1)|in:-1,MAX key=ids(1,2,0,0)|in:0,MAX size=5
Belady.__init__ num_slots=4|not:-1,3,5,2**30,MAX contents=ids(0,1,-1,-1)|optional
Belady.observe @belady() id=ids(3,4,5)|in:0,2**63|any_length
Belady.plan_next @belady() id=ids(0,0,0) hit=i32(3) admit=i32(3)
Belady.contents @belady() id=ids(0,0,0,0)
set_num_threads num_threads=2|not:-1,0,2**40
set_simd_level level=core.simd_level()
"""
"""A valid call of each function of the core: its name, `@it`, the object of a method, or
`=function` to call instead, and arguments `name=value`. Behind `|` are the range of its elements,
the values that it must not have, and marks of `Call.marks`. No expression has a space."""


def cases() -> dict[str, Callable[[], Call]]:
    """Return a factory of a valid call for every function of the core."""
    lines = CASES.replace("\n  ", " ").splitlines()
    words = (line.split() for line in lines if line)
    return {name: partial(_made, name, *rest) for name, *rest in words}


def _made(name: str, *words: str) -> Call:
    kind, _, method = name.partition(".")
    it, call = None, Call(getattr(_core, kind), {})
    for word in words:
        argument, _, rest = word.partition("=")
        if word[0] == "@":
            it = eval(word[1:], KNOWN)
            call.function = call.function if method == "__init__" else getattr(it, method)
        elif word[0] == "=":
            call.function = eval(rest, KNOWN)
        else:
            value, *limits = rest.split("|")
            call.arguments[argument] = eval(value, KNOWN, {"it": it})
            for limit, _, values in (each.partition(":") for each in limits):
                if limit == "in":
                    call.ranges[argument] = eval(values, KNOWN)
                elif limit == "not":
                    call.refused[argument] = eval(f"[{values}]", KNOWN)
                else:
                    call.marks.add((argument, limit))
    return call


def entries() -> set[str]:
    """Return the name of every function and method of the core that takes an argument."""
    found = set()
    for name, member in vars(_core).items():
        if name in FOR_TESTS or hasattr(member, "__members__"):
            continue
        if isinstance(member, type):
            methods = {"__init__": member.__init__, **vars(member)}
            found |= {f"{name}.{part}" for part, x in methods.items() if _takes_arguments(x)}
        elif _takes_arguments(member):
            found.add(name)
    return found


def _takes_arguments(member: object) -> bool:
    """Return whether it is a bound C++ function with an argument beside `self`."""
    signature = re.match(r"\w+\((self: [^,)]*(, )?)?(.*)\)( -> .*)?$", _signature(member))
    return signature is not None and bool(signature[3])


def _signature(member: object) -> str:
    if type(member).__name__ not in ("builtin_function_or_method", "instancemethod"):
        return ""
    lines = (getattr(member, "__doc__", None) or "").splitlines()
    return lines[0] if lines else ""


def wrong(call: Call, name: str, good: Any) -> Iterator[tuple[str, Any]]:
    """Yield descriptions and values that an argument must not have."""
    if isinstance(good, Tensor):
        yield from _wrong_tensors(call, name, good)
    elif isinstance(good, tuple) and isinstance(good[0], Tensor):
        # a column of ids: its arrays, one at a time
        for i, part in enumerate(good):
            if isinstance(part, Tensor):
                bytes_of_strings = i == 1  # of any type and length: offsets delimit the strings
                for what, value in _wrong_tensors(call, name, part):
                    if bytes_of_strings and not what.startswith(("on meta", "sparse", "shorter")):
                        continue
                    yield f"part {i}: {what}", (*good[:i], value, *good[i + 1 :])
        yield "one tensor", good[0]
        yield "the other kind", (good[0], good[0] if good[1] is None else None)
    elif isinstance(good, int | float) and not isinstance(good, bool):
        yield from ((str(value), value) for value in call.refused.get(name, []))
        if isinstance(good, int):
            yield "beyond 64 bits", 2**70
        yield "a tensor", torch.zeros(2)
    elif isinstance(good, list | tuple):
        yield from ((str(value), value) for value in call.refused.get(name, []))
    if not call.has(name, "optional") and not isinstance(good, bool):  # None is false
        yield "None", None
    if not isinstance(good, str | Path):
        yield "a string", "x"
    if not isinstance(good, bool):
        yield "an object", object()


def _wrong_tensors(call: Call, name: str, good: Tensor) -> Iterator[tuple[str, Any]]:
    yield "an address", good.data_ptr()
    yield "a list", good.tolist()
    yield "on meta", good.to("meta")
    yield "sparse", good.to_sparse()
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool):
        is_good = call.has(name, "any_type", *(["any_float"] if dtype.is_floating_point else []))
        if dtype != good.dtype and not is_good:
            yield f"of {dtype}", good.to(dtype)
    if good.numel() > 1 and not call.has(name, "any_strides"):
        yield "every other element", torch.stack([good, good], -1)[..., 0]
        yield "one element, expanded", good.flatten()[0].expand(good.shape)
    if not call.has(name, "any_length"):
        yield "longer", torch.cat([good, good])
        if len(good):
            yield "shorter", good[1:]
        if not call.has(name, "any_type", "any_shape"):
            yield "of one more dimension", good.unsqueeze(0)
        if good.dim() > 1 and not call.has(name, "any_width"):
            yield "wider", torch.cat([good, good], -1)
            yield "narrower", good[..., 1:].contiguous()
    low, high = call.ranges.get(name, (None, None))
    if low is not None and high is not None:
        for value in (low - 1, high, MIN, MAX):
            if low <= value < high or not MIN <= value <= MAX:
                continue
            bad = good.clone()
            bad.view(-1)[-1] = value
            yield f"with {value} in it", bad


def attempt_all() -> int:
    """Return the number of attempts that were not refused."""
    accepted = 0
    for entry, make in cases().items():
        print(f"{entry}: as it should be", flush=True)
        call = make()
        call.function(**call.arguments)
        for name in call.arguments:
            good = make()
            for what, value in wrong(good, name, good.arguments[name]):
                fresh = make()
                print(f"{entry}: {name} {what}", flush=True)
                accepted += not _refuses(fresh, {**fresh.arguments, name: value})
    return accepted


def _refuses(call: Call, arguments: dict[str, Any]) -> bool:
    try:
        call.function(**arguments)
    except REFUSALS as error:
        print(f"    {type(error).__name__}: {str(error).splitlines()[0]}")
        return True
    except Exception as error:
        print(f"    NOT AS A REFUSAL: {error!r}", flush=True)
        return False
    print("    ACCEPTED", flush=True)
    return False

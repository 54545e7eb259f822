import errno
import os
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.mappings import mapped_kib
from tgflow import _core
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, UntrustedCheckpoint
from tgflow.checkpoint import sections as parts
from tgflow.checkpoint.sections import Ids
from tgflow.graph.ids import NodeIds

INT64 = st.integers(-(2**63), 2**63 - 1)
INTS = st.one_of(st.integers(-3, 3), INT64)
STRINGS = st.one_of(st.sampled_from(["", "a", "b", "ä", "a\0"]), st.text(max_size=20))


class ReferenceIds:
    """Reference of an id map by a dictionary."""

    def __init__(self, bipartite):
        self.bipartite = bipartite
        self.dense = {}

    def key(self, value, side):
        return (value, side if self.bipartite else "src")

    def encode(self, src, dst):
        out = [], []
        for pair in zip(src, dst, strict=True):
            for value, side, column in zip(pair, ("src", "dst"), out, strict=True):
                column.append(self.dense.setdefault(self.key(value, side), len(self.dense)))
        return out

    def find(self, values, side):
        return [self.dense.get(self.key(value, side), -1) for value in values]


def columns(ids):
    """Every column type for these ids."""
    is_int = bool(ids) and isinstance(ids[0], int)
    arrow = pa.array(ids, pa.int64() if is_int else pa.string())
    yield from (ids, arrow, arrow.dictionary_encode(), pa.chunked_array([arrow[:1], arrow[1:]]))
    yield pa.concat_arrays([arrow[:1], arrow])[1:] if ids else arrow
    yield np.array(ids, dtype=object)
    if is_int:
        yield from (torch.tensor(ids), np.array(ids), torch.tensor(ids).repeat(2)[: len(ids)])
    else:
        yield from (arrow.cast(pa.large_string()), arrow.cast(pa.string_view()))


@settings(max_examples=tries(60, 10))
@given(
    edges=st.one_of(*(st.lists(st.lists(st.tuples(s, s), max_size=40)) for s in (INTS, STRINGS))),
    unknown=st.data(),
    bipartite=st.booleans(),
)
def test_id_map_matches_a_dictionary(edges, unknown, bipartite):
    ids, reference = NodeIds(bipartite), ReferenceIds(bipartite)
    for batch in edges:
        src, dst = [s for s, _ in batch], [d for _, d in batch]
        assert [c.tolist() for c in ids.encode(src, dst)] == list(reference.encode(src, dst))
    assert len(ids) == len(reference.dense)
    values = [value for value, _ in reference.dense]
    assert ids.decode(torch.arange(len(ids))) == values
    if values:
        values.append(unknown.draw(INTS if isinstance(values[0], int) else STRINGS))
    for side in ("src", "dst"):
        assert ids.find(values, side).tolist() == reference.find(values, side)
    size, again = unknown.draw(st.integers(0, len(ids))), NodeIds()
    again.load_state_dict(ids.state_dict(size))
    assert again.bipartite == bipartite
    assert again.decode(torch.arange(size)) == ids.decode(torch.arange(size))
    for src, dst in (([s for s, _ in batch], [d for _, d in batch]) for batch in edges):
        assert [c.tolist() for c in again.encode(src, dst)] == list(reference.encode(src, dst))


@given(ids=st.one_of(st.lists(INTS, max_size=20), st.lists(STRINGS, max_size=20)))
def test_every_kind_of_column_gives_the_same_nodes(ids):
    expected = [c.tolist() for c in NodeIds().encode(ids, ids[::-1])]
    for src, dst in zip(columns(ids), columns(ids[::-1]), strict=True):
        assert [c.tolist() for c in NodeIds().encode(src, dst)] == expected


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1, 2**63], np.uint64),
        [1, 2**63],
        [1, -(2**63) - 1],
        pa.array([1, 2**64 - 1], pa.uint64()),
    ],
)
def test_integer_beyond_int64_is_named(ids):
    with pytest.raises(ValueError, match=r"dst of row 1 is -?\d{19,20}, which exceeds int64"):
        NodeIds().encode([1, 1], ids)


@pytest.mark.parametrize(
    "ids",
    [
        [7, None],
        ["a", None],
        np.array(["a", None], object),
        np.array(["a", np.nan], object),
        pa.array([1, None]),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays([0, 1], ["a", None]),
    ],
)
def test_missing_id_is_named(ids):
    with pytest.raises(ValueError, match="dst of row 1 is missing"):
        NodeIds().encode([1, 1], ids)
    with pytest.raises(ValueError, match="ids of row 1 is missing"):
        NodeIds().find(ids)


def test_integer_and_string_ids_cannot_be_mixed():
    ids = NodeIds()
    with pytest.raises(TypeError, match=r"src mixes int and str \(row 1: 'b'\)"):
        ids.encode([1, "b"], [1, 2])
    with pytest.raises(TypeError, match="dst holds strings but this map's ids are integers"):
        ids.encode([1], ["a"])
    assert len(ids) == 0
    ids.encode(["a"], ["b"])
    with pytest.raises(TypeError, match="src holds integers but this map's ids are strings"):
        ids.encode([1], [2])
    with pytest.raises(TypeError, match="ids holds integers but this map's ids are strings"):
        ids.find(torch.tensor([1]))
    assert len(ids) == 2


@pytest.mark.parametrize(
    "ids", [[1.5], [True], [b"a"], torch.ones(1), torch.ones(1, dtype=torch.bool), np.ones(1)]
)
def test_unsupported_id_types_are_refused(ids):
    with pytest.raises(TypeError, match="src must be integers or strings, got"):
        NodeIds().encode(ids, [1])


@pytest.mark.parametrize(
    "none", [[], np.array([]), pa.array([]), torch.tensor([]), pa.array([""])[1:]]
)
def test_empty_input_does_not_fix_the_id_type(none):
    ids = NodeIds()
    src, dst = ids.encode(none, none)
    assert (src.shape, dst.shape, src.dtype) == ((0,), (0,), torch.int64)
    assert ids.find(["a", "b"]).tolist() == [-1, -1]
    assert ids.decode(torch.empty(0, dtype=torch.int64)) == []
    assert ids.state_dict() == {}
    ids.encode(["a"], ["b"])
    assert len(ids) == 2


@pytest.mark.parametrize("ids", [NodeIds(), NodeIds(bipartite=True)])
@pytest.mark.parametrize("dense", [-1, 0, 2])
def test_decoding_an_unknown_node_names_it(ids, dense):
    with pytest.raises(IndexError, match=f"node {dense} at row 0 has no id; the map holds 0"):
        ids.decode(torch.tensor([dense]))


def test_find_accepts_only_two_sides():
    with pytest.raises(ValueError, match='side must be "src" or "dst", got \'both\''):
        NodeIds().find([1], "both")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"keys": torch.tensor([1, 1])}, "id 1 of the state comes twice"),
        ({"keys": torch.tensor([1.0])}, r"ids must be .*int64"),
        ({"keys": torch.tensor([1]), "sides": torch.zeros(2, dtype=torch.uint8)}, "sides must be"),
        (
            {"offsets": torch.tensor([0, 5]), "bytes": torch.zeros(4, dtype=torch.uint8)},
            "offsets that never decrease, from 0 to 4, its bytes",
        ),
        (
            {"offsets": torch.tensor([0, 5, 4]), "bytes": torch.zeros(4, dtype=torch.uint8)},
            "offsets that never decrease, from 0 to 4, its bytes",
        ),
        (
            {"offsets": torch.tensor([], dtype=torch.int64), "bytes": torch.empty(0)},
            "offsets that never decrease",
        ),
    ],
)
def test_damaged_state_is_refused_and_changes_nothing(state, message):
    ids = NodeIds()
    ids.encode([7], [7])
    with pytest.raises(ValueError, match=message):
        ids.load_state_dict(state)
    assert ids.find([7]).tolist() == [0]


@pytest.mark.parametrize("names", [[5, 3, 9, 4], ["ann", "bob", "", "cy"]])
@pytest.mark.parametrize("bipartite", [False, True])
def test_ids_extend_another_map_from_its_end_on(names, bipartite):
    ids, other = NodeIds(bipartite), NodeIds(bipartite)
    for stop in (0, 1, 2, 4):
        if stop:
            ids.encode(names[:stop], names[:stop][::-1])
        other.extend(ids.state_dict(start=len(other)))
        assert len(other) == len(ids)
        state, expected = other.state_dict(), ids.state_dict()
        assert all(torch.equal(state[name], x) for name, x in expected.items())
    with pytest.raises(ValueError, match="comes twice"):
        other.extend(ids.state_dict(1))


def test_lookups_are_safe_during_an_encode():
    ids = NodeIds()
    ids.encode(list(map(str, range(100))), list(map(str, range(100))))
    wrong, done = [], threading.Event()

    def look():
        while not done.is_set():
            if ids.find(["17"]).tolist() != [17] or ids.decode(torch.tensor([18])) != ["18"]:
                wrong.append(True)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for start in range(0, 100_000, 1_000):
        fresh = [f"node-{i}" for i in range(start, start + 1_000)]
        ids.encode(fresh, fresh)
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(ids) == 100_100


@pytest.mark.parametrize("bipartite", [False, True])
@pytest.mark.parametrize("make", [lambda i: i * 7 - 50, lambda i: "n" * (i % 30) + str(i)])
def test_saved_ids_are_mapped_and_load_in_chunks(make, bipartite, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "ID_PIECE", 4096)
    monkeypatch.setattr(parts, "ID_BYTES_PIECE", 16384)
    names = [make(i) for i in range(10_000)]
    src, dst = names[:5000], names[5000:]
    ids, writer = NodeIds(bipartite), CheckpointWriter(CheckpointStore(tmp_path))
    dense = [x.tolist() for x in ids.encode(src, dst)]
    checkpoint = Checkpoint({})
    Ids(ids, 9001).save(checkpoint)
    writer.submit(1, checkpoint)
    writer.wait()
    column = "keys" if isinstance(names[0], int) else "ends"
    mapped = [0, 4096] if os.sysconf("SC_PAGE_SIZE") == 4096 else []
    assert [*ids.files[column]] == mapped
    assert [x.tolist() for x in ids.encode(src, dst)] == dense
    ids.encode([make(20_000)], [make(20_001)])
    (_, found) = CheckpointStore(tmp_path).newest()
    again = NodeIds()
    Ids(again).load(found)
    assert (len(again), again.bipartite) == (9001, bipartite)
    assert [*again.files[column]] == mapped
    known = torch.arange(9001)
    assert again.decode(known) == ids.decode(known)
    assert [x.tolist() for x in again.encode(src, dst)] == dense
    assert Ids.num_saved(found) == 9001


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
@pytest.mark.parametrize("kind", [int, str])
def test_index_of_many_ids_is_in_a_file_and_a_full_disk_is_an_error(kind, tmp_path):
    names = [kind(i * 7) for i in range(400_000)]
    src, dst = names[::2], names[1::2]
    ids, plain = NodeIds(), NodeIds()
    for each in (ids, plain):
        each.encode(src[:1000], dst[:1000])
    ids.hold_index_in(str(tmp_path))
    plain.encode(src, dst)
    _core.inject_fault(_core.FileOp.write, 0, 1, -errno.ENOSPC)
    try:
        with pytest.raises(OSError, match=rf"in {tmp_path} for the index of node ids.*No space"):
            ids.encode(src, dst)
    finally:
        _core.inject_fault(_core.FileOp.write, 0, 0, 0)
    assert 1000 < len(ids) < 400_000
    again = NodeIds()
    again.hold_index_in(str(tmp_path))
    again.load_state_dict(plain.state_dict())
    before = mapped_kib(tmp_path, "Size")
    for each in (ids, again):
        assert torch.equal(*(torch.stack(i.encode(src, dst)) for i in (each, plain)))
    assert before >= 2 * 400_000 * 4 / 1024
    assert mapped_kib(tmp_path, "Size") >= 2 * before
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ({"num": 5, "columns": {"keys": 3}}, "there are 3 ids, not 5"),
        ({"num": 2, "columns": {"ends": 2}}, "ids_ends"),
        ({"num": 2, "columns": {}}, "there are 0 ids, not 2"),
    ],
)
def test_damaged_ids_of_a_checkpoint_are_refused(note, message):
    saved = Checkpoint({"ids_keys": {"keys": torch.arange(3)}})
    saved.note("ids", {"bipartite": False, **note})
    with pytest.raises(UntrustedCheckpoint, match=message):
        Ids(NodeIds()).load(saved)

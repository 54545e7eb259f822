"""Pickled dicts of arrays: all protocols, older NumPy, and hostile files."""

import os
import pickle
import struct
import tracemalloc
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.streams import StreamError
from tgflow.streams.files.pickled_arrays import read_pickled_arrays

KNOWN = {
    (1, 2, 3): np.arange(3),
    (np.int64(4), np.int32(5), np.float64(6.0)): np.array([7, 8], dtype=np.int32),
    (7, 8, 2**40): np.arange(9)[::2],
    (9, 9, 9): np.empty(0, dtype=np.int64),
    (10, 9, 9): np.array([1, 2], dtype=">i8"),
    (11, 9, 9): np.array([200], dtype=np.uint8),
    (12, 9, 9): np.array([0.0, -3.0, 2.0**53]),
    (13, 9, 9): np.array([1.0, 7.0], dtype=np.float32),
    (14, 9, 9): np.concatenate([np.array([]), np.arange(3)]),
    (15, 9, 9): np.array([5, 2**40, np.int64(6)], dtype=object),
    (16, 9, 9): np.array([5], dtype=object),
    (17, 9, 9): np.array([], dtype=object),
}


def read(tmp_path, data):
    path = tmp_path / "ns.pkl"
    path.write_bytes(data)
    return read_pickled_arrays(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_is_read(tmp_path, protocol):
    found = read(tmp_path, pickle.dumps(KNOWN, protocol=protocol))
    assert [*found] == [tuple(map(int, key)) for key in KNOWN]
    assert all(type(part) is int for key in found for part in key)
    for values, expected in zip(found.values(), KNOWN.values(), strict=True):
        assert values.dtype == np.int64
        assert values.tolist() == expected.tolist()


def test_module_names_of_older_numpy_are_accepted(tmp_path):
    data = pickle.dumps(KNOWN, protocol=2)
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != data
    assert len(read(tmp_path, old)) == len(KNOWN)


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickled_code_is_refused_by_name_and_not_executed(tmp_path):
    target = str(tmp_path / "made")
    with pytest.raises(StreamError, match=r"byte \d+: it contains the name 'posix mkdir'"):
        read(tmp_path, pickle.dumps({(1, 2, 3): Harm(target)}))
    assert not os.path.exists(target)


SHARED = np.arange(2_000)
OBJECTS = SHARED.astype(object)
DEEP = b")" + b"\x85" * 1_000_000  # a tuple nested so deep that hashing it overflows the C stack
WIDE = b")q\x00" + b"".join(b"0h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60))  # of 2**60 tuples


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a whole pickle"),
        (b"src,dst\n1,2\n", "not a whole pickle"),
        (pickle.dumps(KNOWN)[:-9], "not a whole pickle"),
        (pickle.dumps([1, 2]), "it contains no dict"),
        (pickle.dumps({}, protocol=0), "a set, or an old dict"),
        (b"\x80\x04\x8f(" + DEEP + b"\x90.", "a set, or an old dict"),
        (b"\x80\x04(" + DEEP + b"\x91.", "a set, or an old dict"),
        (b"\x80\x04cnumpy\nndarray\n}(X\x01\x00\x00\x00xK\x01ub.", "a value that is not an array"),
        (b"\x80\x04cnumpy\nndarray\nN}\x86b.", "a state for an object without one"),
        (pickle.dumps((1, 2)), "it contains no dict"),
        (pickle.dumps(OrderedDict(KNOWN)), "the name 'collections OrderedDict'"),
        (pickle.dumps({(1, 2): np.arange(2)}), r"a key that is not \(src, dst, t\)"),
        (pickle.dumps({(1, 2, 0.5): np.arange(2)}), "other than whole numbers"),
        (pickle.dumps({(1, 2, True): np.arange(2)}), "other than whole numbers"),
        (pickle.dumps({(1, 2, float("inf")): np.arange(2)}), "not a whole pickle: OverflowError"),
        (pickle.dumps({(1, 2, 3): 4}), "a value that is not an array"),
        (pickle.dumps({(1, 2, 3): np.arange(4).reshape(2, 2)}), "not a list of whole numbers"),
        (pickle.dumps({(1, 2, 3): np.array([1.0, 0.5])}), "not a list of whole numbers"),
        (pickle.dumps({(1, 2, 3): np.array([np.nan])}), "not a list of whole numbers"),
        (pickle.dumps({(1, 2, 3): np.array([2.0**63])}), "not a list of whole numbers"),
        (pickle.dumps({(1, 2, 3): np.array([2**63], np.uint64)}), "not a list of whole numbers"),
        (pickle.dumps({(1, 2, 3): np.array([{}], dtype=object)}), "not a list of whole numbers"),
        (pickle.dumps({(1, 2, 3): np.array([1.0], dtype=object)}), "not a list of whole numbers"),
        (pickle.dumps({(1, 2, 3): np.array([True], dtype=object)}), "not a list of whole numbers"),
        (
            pickle.dumps({(1, 2, 3): np.array([2**64], dtype=object)}),
            "not a whole pickle: OverflowError",
        ),
        (
            b"\x80\x04}" + DEEP + pickle.dumps(np.arange(2), protocol=2)[2:-1] + b"s.",
            r"a key that is not \(src, dst, t\)",
        ),
        (pickle.dumps({(i, 2, 3): SHARED for i in range(500)}), "16 times its size"),
        (pickle.dumps({(i, 2, 3): OBJECTS for i in range(500)}), "16 times its size"),
        (b"\x80\x04}(K\x01.", "not a whole pickle|no dict|without its values"),
        (b"\x80\x04\x85.", "not a whole pickle: IndexError"),
        (b"\x80\x04t.", "not a whole pickle: IndexError"),
        (b"\x80\x04h\x07.", "not a whole pickle: UnpicklingError .* index 7"),
        (b"\x80\x04}K\x01K\x02s", "a value that is not an array"),
        (b"\x80\x04\x8d" + b"\xff" * 8, "not a whole pickle"),
        (b"\x80\x04cnumpy\ndtype\n" + DEEP + b"\x85R.", "it contains a dtype"),
        (b"\x80\x04cnumpy\ndtype\n" + WIDE + b"\x85R.", "it contains a dtype"),
        (
            b"\x80\x04X\x64\0\0\0"
            + b"a" * 100
            + b"N\x86q\0"
            + b"c_codecs\nencode\nh\0R" * 9
            + b".",
            "bytes of more than its size",
        ),
        (b"\x80\x04P1\n.", "not a whole pickle: UnpicklingError"),
        (b"\x80\x04(ios\nsystem\n.", "the name 'os system'"),
        (b"\x80\x04cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "the name 'os system'"),
    ],
)
def test_other_pickles_are_refused(tmp_path, data, message):
    with pytest.raises(StreamError, match=message):
        read(tmp_path, data)


@pytest.mark.parametrize("opcode", [pickle.BINBYTES8, pickle.BINUNICODE8, pickle.BYTEARRAY8])
def test_declared_lengths_are_not_allocated(tmp_path, opcode):
    tracemalloc.start()
    try:
        with pytest.raises(StreamError, match="not a whole pickle"):
            read(tmp_path, b"\x80\x05" + opcode + struct.pack("<Q", 1 << 28) + b".")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=tries(300), deadline=None)
@given(protocol=st.integers(2, 5), edits=EDITS, cut=st.integers(0, 50))
def test_mutated_bytes_give_arrays_or_a_declared_error(scratch, protocol, edits, cut):
    data = bytearray(pickle.dumps(KNOWN, protocol=protocol))
    for place, value in edits:
        data[place % len(data)] = value
    try:
        found = read(scratch, data[: len(data) - cut])
    except StreamError:
        return
    for key, values in found.items():
        assert [type(part) for part in key] == [int] * 3
        assert values.ndim == 1
        assert values.dtype == np.int64

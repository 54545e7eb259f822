"""All bad rows of a batch, each with its code, and the good ones beside them."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.streams.rows.schema import Checks, Columns, Scale
from tgflow.streams.rows.validate import RowSchema, validate

INT64_MAX = 2**63 - 1
GOOD = {"src": 1, "dst": 2, "t": 3, "label": 0, "f": 0.5}
TYPES = {
    "src": pa.int64(),
    "dst": pa.int64(),
    "t": pa.int64(),
    "label": pa.int64(),
    "f": pa.float64(),
}


def form(features=("f",), widths=(1,), ids="int", unit="s", tick=None, **checks):
    columns = Columns(label="label", features=tuple(features))
    return RowSchema(columns, ids, Scale.between(unit, tick or unit), widths, Checks(**checks))


def batch(rows, **types):
    types = TYPES | types
    columns = {name: pa.array([row[name] for row in rows], types[name]) for name in types}
    return pa.record_batch(columns)


def test_bad_text_among_names_is_isolated():
    names = pa.array([b"ann", b"\xff", b"", b"bob", b"\xc3"]).view(pa.string())
    rows = pa.record_batch({"src": names, "dst": ["x"] * 5, "t": range(5)})
    found = validate(rows, RowSchema(Columns(), "string", Scale("s", "s")))
    assert [(fault.row, fault.code) for fault in found.faults] == [
        (1, "encoding"),
        (2, "null"),
        (4, "encoding"),
    ]
    assert found.events.src.to_pylist() == ["ann", "bob"]


def test_a_dictionary_with_an_index_out_of_range_is_isolated():
    broken = pa.DictionaryArray.from_arrays([0, 7, 1], ["ann", "bob"], safe=False)
    rows = pa.record_batch({"src": broken, "dst": ["x"] * 3, "t": range(3)})
    found = validate(rows, RowSchema(Columns(), "string", Scale("s", "s")))
    assert [(fault.row, fault.code) for fault in found.faults] == [(1, "encoding")]


values = {
    "src": st.sampled_from([0, 7, INT64_MAX, -1, None]),
    "dst": st.sampled_from([0, 7, 100, 101, None]),
    "t": st.sampled_from([0, -5, -(2**63), INT64_MAX, None]),
    "label": st.sampled_from([0, 5, 6, None]),
    "f": st.sampled_from([0.0, 2.0, -2.1, math.nan, math.inf, 1e39, None]),
}
CHECKS = {"max_node_id": INT64_MAX, "max_label": 5, "max_abs": 2.0}


def expected(row):
    """Return the code of a row, by rules written out one by one."""
    for name in ("src", "dst"):
        if row[name] is None:
            return "null"
        if row[name] < 0:
            return "negative_id"
    if row["t"] is None:
        return "null"
    if row["t"] == -(2**63):
        return "time_range"
    if row["label"] is None:
        return "null"
    if row["label"] > 5:
        return "range"
    f = row["f"]
    if f is None:
        return "null"
    if math.isnan(f):
        return "nan"
    if abs(f) > 3.4028235e38:
        return "inf"
    return "range" if abs(f) > 2 else None


@given(st.lists(st.fixed_dictionaries(values), max_size=12), st.integers(0, 12))
def test_validate_finds_what_a_row_by_row_check_finds_wherever_it_is_cut(rows, cut):
    found = []
    for start, part in ((0, rows[:cut]), (cut, rows[cut:])):
        validated = validate(batch(part), form(**CHECKS))
        found += [(start + fault.row, fault.code) for fault in validated.faults]
        good = [row for row in part if expected(row) is None]
        assert validated.events.src.to_pylist() == [row["src"] for row in good]
        assert validated.events.t.tolist() == [row["t"] for row in good]
        assert np.array_equal(validated.events.x[:, 0], [row["f"] for row in good])
        index = range(len(part)) if validated.index is None else validated.index.tolist()
        assert list(index) == [i for i, row in enumerate(part) if expected(row) is None]
    assert found == [(i, expected(row)) for i, row in enumerate(rows) if expected(row)]


def test_limits_are_sane():
    for limits in ({"max_node_id": -1}, {"max_abs": math.nan}, {"max_record_bytes": 0}):
        with pytest.raises(ValueError, match="must be at least"):
            Checks(**limits)
    with pytest.raises(ValueError, match="unknown_keys must be one of ignore, reject, got 'drop'"):
        Checks(unknown_keys="drop")

"""Row validation: all bad rows of a batch with their codes, and the good rows."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.streams.rows.schema import Checks, Columns, Scale
from tgflow.streams.rows.validate import RowSchema, validate


def test_invalid_string_ids_are_isolated():
    names = pa.array([b"ann", b"\xff", b"", b"bob", b"\xc3"]).view(pa.string())
    rows = pa.record_batch({"src": names, "dst": ["x"] * 5, "t": range(5)})
    found = validate(rows, RowSchema(Columns(), "string", Scale("s", "s")))
    assert [(row, code) for row, (code, _) in found.faults.items()] == [
        (1, "encoding"),
        (2, "null"),
        (4, "encoding"),
    ]
    assert found.events.src.to_pylist() == ["ann", "bob"]


def test_dictionary_with_an_index_out_of_range_is_isolated():
    broken = pa.DictionaryArray.from_arrays([0, 7, 1], ["ann", "bob"], safe=False)
    rows = pa.record_batch({"src": broken, "dst": ["x"] * 3, "t": range(3)})
    found = validate(rows, RowSchema(Columns(), "string", Scale("s", "s")))
    assert [(row, code) for row, (code, _) in found.faults.items()] == [(1, "encoding")]


INT64_MAX = 2**63 - 1
VALUES = {
    "src": [0, 7, INT64_MAX, -1, None],
    "dst": [0, 7, INT64_MAX, -1, None],
    "t": [0, -5, -(2**63), INT64_MAX, None],
    "label": [0, 5, None],
    "f": [0.0, 2.0, -2.1, math.nan, math.inf, 1e39, None],
}
RULES = {
    "src": lambda x: "negative_id" if x < 0 else None,
    "dst": lambda x: "negative_id" if x < 0 else None,
    "t": lambda x: "time_range" if x == -(2**63) else None,
    "label": lambda x: None,
    "f": {math.nan: "nan", math.inf: "inf", 1e39: "inf", -2.1: "range"}.get,
}


def code_of(row):
    codes = ("null" if row[name] is None else rule(row[name]) for name, rule in RULES.items())
    return next(filter(None, codes), None)


@given(
    st.lists(st.fixed_dictionaries({k: st.sampled_from(v) for k, v in VALUES.items()}), max_size=12)
)
def test_first_fault_of_each_row_is_named_and_good_rows_are_events(rows):
    types = {name: pa.float64() if name == "f" else pa.int64() for name in VALUES}
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(types))
    checks = Checks(max_abs=2.0)
    columns = Columns(label="label", features=("f",))
    found = validate(batch, RowSchema(columns, "int", Scale("s", "s"), (1,), checks))
    codes = [code_of(row) for row in rows]
    expected = [(i, code) for i, code in enumerate(codes) if code]
    assert [(row, code) for row, (code, _) in found.faults.items()] == expected
    good = [row for row, code in zip(rows, codes, strict=True) if code is None]
    for name in ("src", "dst"):
        assert getattr(found.events, name).to_pylist() == [row[name] for row in good]
    assert found.events.t.tolist() == [row["t"] for row in good]
    assert found.events.x[:, 0].tolist() == [row["f"] for row in good]
    index = range(len(rows)) if found.index is None else found.index.tolist()
    assert [*index] == [i for i, code in enumerate(codes) if code is None]


def test_invalid_limits_are_refused():
    for limits in ({"max_abs": math.nan}, {"max_record_bytes": 0}):
        with pytest.raises(ValueError, match="must be at least"):
            Checks(**limits)

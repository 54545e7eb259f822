"""All bad rows of a batch, each with its code, and the good ones beside them."""

import math

import pyarrow as pa
import pytest

from tgflow.streams.rows.schema import Checks, Columns, Scale
from tgflow.streams.rows.validate import RowSchema, validate


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


def test_limits_of_values_make_rows_bad():
    rows = pa.table({
        "src": [1, 9, 1, 1], "dst": [2] * 4, "t": [3] * 4, "label": [0, 0, 6, 0],
        "f": [2.0, 0.0, 0.0, -2.1],
    }).to_batches()[0]  # fmt: skip
    checks = Checks(max_node_id=8, max_label=5, max_abs=2.0)
    columns = Columns(label="label", features=("f",))
    found = validate(rows, RowSchema(columns, "int", Scale("s", "s"), (1,), checks))
    codes = [(fault.row, fault.code) for fault in found.faults]
    assert codes == [(1, "huge_id"), (2, "range"), (3, "range")]


def test_limits_are_sane():
    for limits in ({"max_node_id": -1}, {"max_abs": math.nan}, {"max_record_bytes": 0}):
        with pytest.raises(ValueError, match="must be at least"):
            Checks(**limits)
    with pytest.raises(ValueError, match="unknown_keys must be one of ignore, reject, got 'drop'"):
        Checks(unknown_keys="drop")

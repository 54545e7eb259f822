"""String and boolean labels are classes, numbered in order of appearance."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from helpers.files import flat, read
from tgflow.graph.events import NO_LABEL
from tgflow.streams import FileSource, StreamError, open_stream, write_events
from tgflow.streams.rows import validate
from tgflow.streams.rows.validate import first_classes, label_values


def write_labels(path, labels):
    rows = [{"src": 0, "dst": 1, "t": t, "label": label} for t, label in enumerate(labels)]
    if path.suffix == ".csv":
        lines = [f"0,1,{row['t']},{row['label']}" for row in rows]
        path.write_text("src,dst,t,label\n" + "\n".join(lines) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def labels_of(source):
    return [label for batch in source for label in batch.label.tolist()]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_string_classes_are_numbered_in_order_of_appearance(tmp_path, ending):
    path = write_labels(tmp_path / f"a.{ending}", ["card", "cash", "card", "wire"])
    stream = open_stream(path, label="label")
    assert labels_of(stream) == [0, 1, 0, 2]
    assert stream.classes == {"label": ("card", "cash", "wire")}
    assert labels_of(stream) == [0, 1, 0, 2], "and so again"
    assert stream.notes == [f"{path}: label: texts are classes, numbered as they appear"]


def test_numbers_among_the_first_rows_stay_numbers(tmp_path):
    assert first_classes([1, 2]) is None
    assert first_classes(["7", None]) is None
    assert first_classes(["7", "x"]) is None, "a bad row decides nothing for others"
    assert first_classes(["7", "x", "y", ""]) == []
    assert first_classes(["True", "false"]) == ["false", "true"]
    with pytest.raises(StreamError, match="label is 'x', expected a whole number"):
        labels_of(open_stream(write_labels(tmp_path / "a.csv", [1] * 200 + ["x"]), label="label"))


def test_non_class_text_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(validate.MOST, "label", 2)
    path = write_labels(tmp_path / "a.csv", ["a", "b", "a", "c"])
    with pytest.raises(StreamError, match=r"line 5: label is c, and there are .* classes already"):
        labels_of(open_stream(path, label="label"))


def test_relations_and_labels_have_numbers_of_their_own(tmp_path):
    rows = ["0,1,1,pay,yes,", "0,1,2,fee,no", "0,2,3,pay,no"]
    path = tmp_path / "a.csv"
    path.write_text("src,dst,t,kind,ok\n" + "\n".join(row.rstrip(",") for row in rows) + "\n")
    stream = open_stream(path, relation="kind", label="ok")
    [batch] = stream
    assert (batch.relation.tolist(), batch.label.tolist()) == ([0, 1, 0], [0, 1, 1])
    assert stream.classes == {"relation": ("pay", "fee"), "label": ("yes", "no")}
    write_events(tmp_path / "b.jsonl", stream)
    [again] = open_stream(tmp_path / "b.jsonl", relation="relation", label="label")
    assert torch.equal(again.relation, batch.relation)
    assert torch.equal(again.label, batch.label)
    assert '"relation": "fee"' in (tmp_path / "b.jsonl").read_text(), "the texts are kept"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("role", ["relation", "label"])
def test_resumed_reading_keeps_the_numbers_of_texts(tmp_path, ending, role):
    words = [f"w{i * i % 7}" for i in range(60)]
    path = write_labels(tmp_path / f"a.{ending}", words)
    options = {role: "label", "block_bytes": 90}
    polled = read(FileSource(path, **options))
    first = list(dict.fromkeys(words))

    def numbers(polls):
        return [x for rows in polls for x in getattr(rows.events, role).tolist()]

    found = numbers(polled)
    assert found == [first.index(word) for word in words]
    for i, rows in enumerate(polled[:-1]):
        rest = read(FileSource(path, **options), rows.position)
        assert numbers(rest) == found[len(numbers(polled[: i + 1])) :]


@pytest.mark.parametrize("value", [-1, 65_536])
def test_relation_out_of_range_is_a_bad_row(tmp_path, value):
    path = write_labels(tmp_path / "a.csv", [0, 65_535, value])
    with pytest.raises(StreamError, match=rf"line 4: label is {value}, outside of \[0, 65535\]"):
        list(open_stream(path, relation="label"))


ROWS = [(1.5, 2.0), (None, 3.0), (float("nan"), None)]


def write_rows(path):
    table = [{"src": 0, "dst": 1, "t": t, "f0": a, "f1": b} for t, (a, b) in enumerate(ROWS)]
    if path.suffix == ".csv":
        lines = ["0,1,0,1.5,2.0", "0,1,1,,3.0", "0,1,2,nan,NA"]
        path.write_text("src,dst,t,f0,f1\n" + "\n".join(lines) + "\n")
    elif path.suffix == ".jsonl":
        table[2]["f0"] = None
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        pq.write_table(pa.Table.from_pylist(table), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_missing_features_are_refused_or_filled(tmp_path, ending):
    path = write_rows(tmp_path / f"a.{ending}")
    with pytest.raises(StreamError, match=r"f0 is "):
        list(open_stream(path, features="f"))
    stream = open_stream(path, features="f", fill_missing=-1)
    assert next(iter(stream)).x.tolist() == [[1.5, 2.0], [-1.0, 3.0], [-1.0, -1.0]]


def test_missing_list_elements_are_filled():
    table = {"src": [0, 0], "dst": [1, 1], "t": [1, 2], "x": [[1.0, None], [None, 4.0]]}
    stream = open_stream(table, features="x", fill_missing=0)
    assert next(iter(stream)).x.tolist() == [[1.0, 0.0], [0.0, 4.0]]


def test_bad_rows_do_not_affect_filled_rows(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"0,1,{t},," if t % 7 else f"0,1,{t},x,1" for t in range(80)]
    path.write_text("src,dst,t,f0,f1\n" + "\n".join(rows) + "\n")
    events, bad = flat(read(FileSource(path, features="f", fill_missing=0, id_kind="int")))
    assert [row[0] for row in bad] == [t for t in range(80) if t % 7 == 0]
    assert {row[4] for row in events} == {(0.0, 0.0)}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_labels_are_read_by_their_values(tmp_path, ending):
    """The positive one is 1 wherever it comes first; unknown ones are no bad rows."""
    path = write_labels(tmp_path / f"a.{ending}", ["fraud", "ok", "", "?", "fraud"])
    options = {"label": "label", "positive_label": "fraud", "unknown_label": ("?",)}
    assert labels_of(open_stream(path, **options)) == [1, 0, NO_LABEL, NO_LABEL, 1]
    assert open_stream(path, **options).count_labels() == {"fraud": 2, "ok": 1}
    options["label_values"] = ("ok", "fraud")
    stream = open_stream(path, **options)
    assert labels_of(stream) == [1, 0, NO_LABEL, NO_LABEL, 1]
    write_events(tmp_path / "b.csv", stream)
    rows = (tmp_path / "b.csv").read_text().replace('"', "").split()
    assert [row.split(",")[3] for row in rows] == ["label", "fraud", "ok", "", "", "fraud"]
    options["label_values"] = ("fraud", "x")
    with pytest.raises(StreamError, match=r"label is 'ok', which is none of the labels fraud, x.*"):
        labels_of(open_stream(path, **options))


@pytest.mark.parametrize(
    ("label", "expected"),
    [([1.0, None, float("nan"), 2.0], ("1", "2")), ([True, None, None, False], ("0", "1")),
     (["1", "", "nan", "02"], ("1", "2")), ([1, None, None, 2], ("1", "2"))],
)  # fmt: skip
def test_equal_labels_of_any_type_are_one_class(label, expected):
    table = pa.table({"src": [0] * 4, "dst": [1] * 4, "t": [*range(4)], "label": label})
    found = labels_of(open_stream(table, label="label", label_values=expected))
    assert (found[1:3], sorted([found[0], found[3]])) == ([NO_LABEL] * 2, [0, 1])


@pytest.mark.parametrize(
    ("counts", "options", "expected"),
    [
        ({"1": 3}, (None, None), ("0", "1")),
        ({"1": 3, "-1": 2}, (None, None), ("-1", "1")),
        ({"0": 3, "1": 2}, ("0", None), ("1", "0")),
        ({"2": 3, "1": 2}, (None, 3), ("2", "1")),
        ({"-1": 3, "0": 2, "1": 2}, (None, None), ("-1", "0", "1")),
        (
            {"2": 3, "1": 2},
            (None, None),
            r"'2' \(3 of 5 rows\) and '1' \(2 of .*positive_label='1'",
        ),
        ({"2": 3, "1": 2}, ("3", None), r"positive_label='3' must be one of two labels of y"),
        ({str(i): 1 for i in range(65)}, (None, None), r"65 distinct .* 64 .*classes=65"),
    ],
)
def test_counted_labels_are_classes_or_are_refused(counts, options, expected):
    if isinstance(expected, tuple):
        assert label_values("y", counts, *options) == expected
        return
    with pytest.raises(ValueError, match=expected):
        label_values("y", counts, *options)

"""Delimited text of any layout, columns of usual names, times in a format, and categories."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tgflow as tg
from helpers.files import flat, read, rows_of
from tgflow.streams import FileSource, StreamError, open_stream

ROWS = [(1, 4, 10), (2, 5, 10), (1, 5, 12)]


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("a.csv", "1,4,10\n2,5,10\n1,5,12\n", {"header": False}),
        ("a.csv", "1,4,9,10\n2,5,9,10\n1,5,9,12\n", {"columns": "src,dst,_,t"}),
        ("a.csv", "1,0,0,4,10\n2,0,0,5,10\n1,0,0,5,12\n", {"columns": "src,_,_,dst,t"}),
        ("a.csv", "a,b,c\n1,4,10\n2,5,10\n1,5,12\n", {"header": True, "columns": "src,dst,t"}),
        ("a.csv", "src;dst;t\n1;4;10\n2;5;10\n1;5;12\n", {"sep": ";"}),
        ("a.csv", "1|4|10\n2|5|10\n1|5|12\n", {"sep": "|", "columns": ["src", "dst", "t"]}),
        ("a.dat", "1\t4\t10\n2\t5\t10\n1\t5\t12\n", {"sep": "tab", "header": False}),
        ("a.dat", " 1  4\t10\n2 5   10 \n1 5 12\n", {"sep": "space", "header": False}),
        ("a.csv", "// made\nsrc,dst,t\n1,4,10\n//2,2,11\n2,5,10\n1,5,12\n//\n", {"comment": "//"}),
        ("a.txt", "# made\n1 4 10\n# 9 9 11\n2 5 10\n1 5 12\n", {}),
        ("a.txt", "# src dst t\n1, 4 \t10\n2,  5,10\n1\t5 12\n", {}),
        ("a.txt", "src dst t\n1 4 10\n2 5 10\n1 5 12\n", {"header": True}),
        ("a.txt", "10 1 4\n10 2 5\n12 1 5\n", {"columns": "t,src,dst"}),
        ("a.edges", "% made\n1 4 10\n2 5 10\n1 5 12\n", {}),
        ("a.edges", "1,4,1.5,10\n2,5,1,10\n1,5,1,12\n", {}),
    ],
)
def test_text_is_read_in_the_given_layout(tmp_path, name, text, settings):
    assert rows_of(open_stream(written(tmp_path / name, text), **settings)) == ROWS


def test_guessed_columns_are_reported(tmp_path):
    path = written(tmp_path / "a.edges", "1 4 7 10\n")
    assert open_stream(path).notes == [
        f"{path}: no header: the columns are read as src, dst, weight, t; "
        "columns='...' names others"
    ]
    assert open_stream(path, columns="src,dst,weight,t").notes == []


def test_first_row_is_never_silently_taken_for_a_header(tmp_path):
    proposes = r"is the first line a row\? header=False columns='src,dst,t' reads it as one"
    with pytest.raises(StreamError, match=proposes):
        open_stream(written(tmp_path / "a.csv", "1,4,10\n2,5,10\n"))
    with pytest.raises(StreamError, match=proposes):
        open_stream(written(tmp_path / "b.csv", "ann,bob,2024-05-01 12:00:00\n"))
    with pytest.raises(StreamError, match=r"are user, item, when: choose with t=...$"):
        open_stream(written(tmp_path / "c.csv", "user,item,when\n1,4,10\n"))
    for format in ("jodie", "dyglib"):
        with pytest.raises(StreamError, match="line 1: the first line is a row, not a header"):
            open_stream(written(tmp_path / "d.csv", "0,1,2.0,0,1,0\n"), format=format)


@pytest.mark.parametrize(
    ("separator", "said"), [(";", "';'"), ("\t", "'tab'"), ("|", "'|'"), (" ", "'space'")]
)
def test_another_separator_is_suggested(tmp_path, separator, said):
    proposes = rf"is there another separator\? sep={re.escape(said)}"
    headed = written(tmp_path / "a.csv", "src,dst,t\n1,4,10\n".replace(",", separator))
    with pytest.raises(StreamError, match=proposes + "$"):
        open_stream(headed)
    assert rows_of(open_stream(headed, sep=said.strip("'"))) == [(1, 4, 10)]
    rows = written(tmp_path / "b.csv", "1,4,10\n2,5,10\n".replace(",", separator))
    with pytest.raises(StreamError, match=proposes + "; or is the first line a row"):
        open_stream(rows)


def test_wrong_number_of_column_names_is_refused(tmp_path):
    path = written(tmp_path / "a.csv", "1,4,0,10\n")
    with pytest.raises(StreamError, match=r"names 3 columns, and the first row has 4 values: .*_"):
        open_stream(path, columns="src,dst,t")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sep": ""}, "sep must be one character"),
        ({"sep": "ab"}, "sep must be one character"),
        ({"sep": "\u00a7"}, "sep must be an ASCII character"),
        ({"columns": "src,src,t"}, "'src' is there twice"),
        ({"columns": "src,,t"}, "a name is empty; write _"),
        ({"comment": " "}, "comment must be a line prefix"),
    ],
)
def test_invalid_layout_is_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        open_stream(written(tmp_path / "a.csv", "1,4,10\n"), **settings)


def test_layout_is_for_delimited_text(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"src": 1, "dst": 2, "t": 3}\n')
    with pytest.raises(ValueError, match=r"are for delimited text .*, not jsonl"):
        open_stream(path, header=False)


def test_bad_rows_after_comments_keep_their_line_numbers(tmp_path):
    path = written(tmp_path / "a.csv", "#\nsrc,dst,t\n#\n1,4,10\n#\n1,4,x\n#\n1,4,11\n")
    events, [(_, _, place, _)] = flat(read(FileSource(path, comment="#")))
    assert (place["line"], [row[3] for row in events]) == (6, [10, 11])


def write(path, num):
    head = ",".join(["src", "dst", "t", *(f"f{i}" for i in range(num))])
    rows = [",".join([f"{i}", f"{i + 1}", f"{i}", *["1.5"] * num]) for i in range(3)]
    path.write_text("\n".join([head, *rows, ""]))
    return path


@pytest.mark.parametrize("features", [None, "f*"])
def test_very_many_columns_are_read(tmp_path, features):
    path = write(tmp_path / "wide.csv", 5_000)
    stream = tg.open_stream(path, features=features)
    assert stream.x_dim == (5_000 if features else 0)
    assert sum(map(len, stream)) == 3


DATES = ["01/15/2024", "01/15/2024", "02/01/2024"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("account", "merchant", "date"), {"src": 0, "dst": 1, "t": 2}),
        (("ts", "User", "Item"), {"src": 1, "dst": 2, "t": 0}),
        (("src", "shop", "Timestamp"), {"dst": 1, "t": 2}),
        (("T", "customer_id", "dst"), {"src": 1, "t": 0}),
        (("src", "dst", "t"), {}),
    ],
)
def test_columns_of_usual_names_are_found_and_noted(tmp_path, names, found):
    path = tmp_path / "events.csv"
    path.write_text(",".join(names) + "\n1,2,3\n4,5,6\n")
    source = open_stream(path)
    assert source.columns == {role: names[i] for role, i in found.items()}
    (batch,) = source
    roles = ("src", "dst", "t")
    place = {role: found.get(role, names.index(role) if role in names else -1) for role in roles}
    assert batch.t.tolist() == [1 + place["t"], 4 + place["t"]]
    assert source.ids.decode(batch.src) == [1 + place["src"], 4 + place["src"]]
    assert source.ids.decode(batch.dst) == [1 + place["dst"], 4 + place["dst"]]
    assert any("by their usual names" in note for note in source.notes) == bool(found)


@pytest.mark.parametrize("is_file", [True, False])
def test_run_end_encoded_columns_are_read(tmp_path, is_file):
    runs = {
        name: pc.run_end_encode(pa.array(v)) for name, v in (("src", [1, 1, 2]), ("t", [5] * 3))
    }
    table, path = pa.table(runs | {"dst": [7, 8, 9]}), tmp_path / "events.arrow"
    if is_file:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    source = open_stream(path if is_file else table)
    [batch] = source
    assert source.ids.decode(batch.src) == [1, 1, 2]
    assert batch.t.tolist() == [5, 5, 5]


def test_column_in_use_is_not_found_by_its_name(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("user,account,shop,at\n1,2,3,4\n")
    with pytest.raises(StreamError, match=r"no column 'src'.*did you mean src='user'"):
        open_stream(path)
    source = open_stream(path, features=["account"])
    assert source.columns == {"src": "user", "dst": "shop", "t": "at"}
    assert open_stream(path, src="account", features=[]).columns == {"dst": "shop", "t": "at"}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_times_of_a_format_are_read(tmp_path, ending):
    path = tmp_path / f"events.{ending}"
    columns = {"src": [1, 2, 1], "dst": [3, 3, 4], "t": DATES}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if ending == "parquet":
        pq.write_table(pa.table(columns), path)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("src,dst,t\n" + "".join(f"{r['src']},{r['dst']},{r['t']}\n" for r in rows))
    with pytest.raises(StreamError) as refused:
        open_stream(path)
    assert str(refused.value).startswith(f"{path}, ")
    assert str(refused.value).endswith(
        "t is '01/15/2024', expected a number of s; pass time_format='%m/%d/%Y'"
    )
    (batch,) = open_stream(path, time_format="%m/%d/%Y")
    assert batch.t.tolist() == [1705276800, 1705276800, 1706745600]
    with pytest.raises(StreamError, match=r"expected a time of time_format='%d/%m/%Y'"):
        list(open_stream(path, time_format="%d/%m/%Y"))


@pytest.mark.parametrize(
    ("text", "format", "ticks", "unit"),
    [
        ("20240115", "%Y%m%d", 1705276800, "s"),
        ("15 Jan 2024 10:30", "%d %b %Y %H:%M", 1705314600, "s"),
        ("15.01.2024 10:30:00.25", "%d.%m.%Y %H:%M:%S.%f", 1705314600250, "ms"),
        ("15.01.2024 10:30 +0200", "%d.%m.%Y %H:%M %z", 1705307400, "s"),
    ],
)
@pytest.mark.parametrize("is_table", [False, True])
def test_formats_of_times_are_exact(tmp_path, text, format, ticks, unit, is_table):
    path = tmp_path / "events.csv"
    path.write_text(f"src,dst,t\n1,2,{text}\n")
    value = int(text) if text.isdecimal() else text
    table = {"src": [1], "dst": [2], "t": [value]}
    source = open_stream(table if is_table else path, time_format=format)
    (batch,) = source
    assert (batch.t.tolist(), source.unit) == ([ticks], unit)


def test_one_bad_time_among_good_ones_is_a_bad_row(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\n1,2,soon\n1,2,01/15/2024\n")
    assert [
        bad.text for batch in read(FileSource(path, time_format="%m/%d/%Y")) for bad in batch.bad()
    ] == ["t is 'soon', expected a time of time_format='%m/%d/%Y'"]
    path.write_text("src,dst,when,t\n1,2,3,soon\n")
    with pytest.raises(StreamError, match=r"line 2: t is 'soon'.*or another column: t="):
        open_stream(path)
    with pytest.raises(ValueError, match="must have directives such as %m/%d/%Y, got 'iso'"):
        open_stream(path, time_format="iso")


TEXTS = (
    "src,dst,t,amount,kind\n1,2,3,0.5,card\n1,3,4,2,cash\n1,2,5,1,card\n1,2,6,1,cheque\n1,2,7,1,\n"
)


def test_text_features_are_refused_or_encoded(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text(TEXTS)
    with pytest.raises(StreamError, match=r"line 2: kind is 'card'.*pass categorical='kind'"):
        open_stream(path, features=["amount", "kind"])
    source = open_stream(path, features=["kind", "amount"], categorical="kind", max_categories=2)
    (batch,) = source
    slots = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]
    amounts = [0.5, 2, 1, 1, 1]
    assert batch.x.tolist() == [[a, *slot] for a, slot in zip(amounts, slots, strict=True)]
    assert source.x_dim == 4
    assert source.features == {"amount": 1, "kind": 3}
    assert source.classes == {"kind": ("card", "cash")}
    with pytest.raises(StreamError, match=r"no column 'kid'.*did you mean categorical='kind'"):
        open_stream(path, categorical="kid")
    with pytest.raises(ValueError, match="max_categories"):
        open_stream(path, categorical="kind", max_categories=0)


@pytest.mark.parametrize("values", [["b", None, "a"], [7, None, 5], [True, False, None]])
@pytest.mark.parametrize("ending", ["jsonl", "table"])
def test_categories_of_any_type_are_encoded(tmp_path, values, ending):
    columns = {"src": [1, 2, 3], "dst": [4, 4, 4], "t": [1, 2, 3], "kind": values}
    path = tmp_path / "events.jsonl"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_stream(path if ending == "jsonl" else columns, categorical="kind")
    (batch,) = source
    names, slots = [], []
    for value in values:
        names += [value] if value is not None and value not in names else []
        slots.append(32 if value is None else names.index(value))
    assert batch.x.argmax(1).tolist() == slots
    assert batch.x.sum(1).tolist() == [1, 1, 1]


def test_categories_do_not_depend_on_blocks_and_resume_with_the_position(tmp_path):
    path = tmp_path / "events.csv"
    kinds = np.random.default_rng(0).integers(0, 60, 500)
    path.write_text("src,dst,t,kind\n" + "".join(f"1,2,{i},k{k}\n" for i, k in enumerate(kinds)))

    def rows(source, position=None):
        return [(batch.events.x, batch.position) for batch in read(source, position)]

    whole = np.concatenate([x for x, _ in rows(FileSource(path, categorical=["kind"]))])
    parts = rows(FileSource(path, categorical=["kind"], block_bytes=700))
    assert len(parts) > 3
    assert np.array_equal(np.concatenate([x for x, _ in parts]), whole)
    for i in range(0, len(parts) - 1, 3):
        source = FileSource(path, categorical=["kind"], block_bytes=700)
        rest = rows(source, parts[i][1])
        done = sum(len(x) for x, _ in parts[: i + 1])
        assert np.array_equal(np.concatenate([x for x, _ in rest]), whole[done:])

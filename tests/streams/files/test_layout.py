"""Delimited text: without a header, with comments, any separator."""

import re

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


def test_header_that_is_too_long_is_refused(tmp_path):
    path = write(tmp_path / "wide.csv", 200_000)
    with pytest.raises(StreamError, match="line 1: the header has more than 1,048,576 bytes"):
        tg.open_stream(path)

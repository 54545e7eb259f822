import gzip
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.streams.files.blocks import TextBlock, TextFile, count_lines
from tgflow.streams.files.lines import Parser, parse_lines

texts = st.lists(
    st.sampled_from([b"a", b"bb", b"\n", b"ccc\n", b"\r\n", b"bad\n"]), max_size=40
).map(b"".join)


def split(text):
    return io.BytesIO(text).readlines()


@given(text=texts, block_bytes=st.integers(1, 12))
@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2"])
def test_blocks_are_whole_lines_with_their_numbers_and_offsets(scratch, ending, text, block_bytes):
    path = scratch / f"lines{ending}"
    with pa.output_stream(str(path), compression="detect") as file:
        file.write(text)
    line, offset = 1, 0
    for block in TextFile(path).blocks(block_bytes):
        assert (block.line, block.offset) == (line, offset)
        assert block.data.endswith(b"\n") or text.endswith(block.data)
        assert text[offset:].startswith(block.data)
        line, offset = line + len(split(block.data)), offset + len(block.data)
    assert offset == len(text)


@given(texts.filter(bool))
def test_count_lines_counts_a_last_line_without_end(text):
    assert count_lines(text) == len(split(text))


@given(texts.filter(lambda text: len(split(text)) > 1), st.integers(1, 20))
def test_pieces_lose_nothing(text, num_pieces):
    pieces = TextBlock(text, 5, 100).pieces(num_pieces)
    assert b"".join(piece.data for piece in pieces) == text
    assert len(pieces) > 1
    line, offset = 5, 100
    for piece in pieces:
        assert (piece.line, piece.offset) == (line, offset)
        assert piece.data.endswith(b"\n") or piece is pieces[-1]
        line, offset = line + len(split(piece.data)), offset + len(piece.data)


def test_pieces_of_two_lines_are_the_lines():
    for text in (b"\n\n", b"a\nb", b"\na", b"aaaa\n\n", b"\naaaaaa\n"):
        for num_pieces in (1, 2, 16):
            pieces = TextBlock(text, 1, 0).pieces(num_pieces)
            assert [piece.data for piece in pieces] == split(text)


@given(
    texts.filter(bool),
    st.sampled_from([None, b"bad\n", b"a"]),
    st.sampled_from([1, 30]),
    st.sampled_from(["none", "the first bad one", "the first", "the last"]),
    st.booleans(),
)
def test_parse_lines_isolates_every_bad_line_whatever_seems_wrong(
    text, wrong, repeat, named, screened
):
    def parse(lines):
        if b"bad\n" in lines.data:
            raise pa.ArrowInvalid("bad")
        return pa.record_batch({"line": split(lines.data)})

    def explain(line):
        return ("syntax", "") if wrong is not None and wrong in line else None

    def hopeless(line):
        return line == b"bad\n"

    def suspect(block):
        bad = next((i for i, line in enumerate(split(block.data)) if b"bad\n" in line), None)
        last = block.num_lines - 1
        return {"none": None, "the first bad one": bad, "the first": 0, "the last": last}[named]

    def screen(block):
        return np.array([hopeless(line) or wrong in line for line in split(block.data)], np.int8)

    schema, seen = pa.schema({"line": pa.binary()}), {}
    screens = screen if screened and wrong is not None else lambda _: None
    parser = Parser(parse, explain, hopeless, screens, suspect, schema, "")
    for numbers, rows in parse_lines(TextBlock(text * repeat, 1, 0), parser):
        values = [None] if rows is None else rows["line"].to_pylist()
        assert not seen.keys() & set(numbers.tolist())
        seen |= dict(zip(numbers.tolist(), values, strict=True))
    lines = split(text * repeat)
    assert seen == {i: None if b"bad\n" in line else line for i, line in enumerate(lines)}


@given(texts, st.integers(0, 5))
def test_head_is_the_first_lines(scratch, text, num_lines):
    path = scratch / "lines"
    path.write_bytes(text)
    expected = [line.rstrip(b"\r\n") for line in split(text)[:num_lines]]
    assert TextFile(path).head(num_lines) == expected


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbfsrc\n1\n")
    assert TextFile(path).head(1) == [b"src"]


def test_gzip_members_one_after_another_are_one_text(tmp_path):
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress(b"1\n2") + gzip.compress(b"3\n"))
    assert [block.data for block in TextFile(path).blocks()] == [b"1\n23\n"]


def test_progress_counts_the_bytes_of_the_file(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"12345678\n" * 4)
    file = TextFile(path)
    assert file.progress() == 0.0
    assert [round(file.progress(), 2) for _ in file.blocks(9)] == [0.25, 0.5, 0.75, 1.0]

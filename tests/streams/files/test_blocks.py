import gzip
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.streams.files.text import Parser, TextFile, parse_lines

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


@given(texts.filter(bool), st.sampled_from([None, b"bad\n", b"a"]), st.integers(1, 40))
def test_parse_lines_isolates_every_bad_line_whatever_seems_wrong(text, wrong, repeat):
    def parse(lines, num_lines):
        assert num_lines == len(split(lines))
        if b"bad\n" in lines:
            raise pa.ArrowInvalid("bad")
        return pa.record_batch({"line": split(lines)})

    def explain(line):
        return ("syntax", "") if wrong is not None and wrong in line else None

    schema = pa.schema({"line": pa.binary()})
    parser = Parser(parse, explain, lambda line: line == b"bad\n", schema, "")
    batch, index, faults = parse_lines(text * repeat, len(split(text * repeat)), parser, 10_000)
    lines = dict(enumerate(split(text * repeat)))
    bad = [number for number, line in lines.items() if b"bad\n" in line]
    assert [fault.row for fault in faults] == bad
    numbers = [number for number in lines if number not in bad]
    assert (list(lines) if index is None else index.tolist()) == numbers
    assert batch["line"].to_pylist() == [lines[number] for number in numbers]


def test_gzip_members_one_after_another_are_one_text(tmp_path):
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress(b"1\n2") + gzip.compress(b"3\n"))
    assert [block.data for block in TextFile(path).blocks()] == [b"1\n23\n"]

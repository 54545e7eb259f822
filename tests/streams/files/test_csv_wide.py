"""Delimited text with very many columns."""

from __future__ import annotations

import re

import pytest

import tgflow as tg
from tgflow.streams.errors import StreamError
from tgflow.streams.files import csv


def write(path, num):
    head = ",".join(["src", "dst", "t", *(f"f{i}" for i in range(num))])
    rows = [",".join([f"{i}", f"{i + 1}", f"{i}", *["1.5"] * num]) for i in range(3)]
    path.write_text("\n".join([head, *rows, ""]))
    return path


@pytest.mark.parametrize("features", [None, "f*"])
def test_pattern_of_a_row_does_not_grow_with_the_columns(tmp_path, monkeypatch, features):
    patterns = []
    compiled = re.compile
    monkeypatch.setattr(csv.re, "compile", lambda text: patterns.append(text) or compiled(text))
    path = write(tmp_path / "wide.csv", 20_000)
    stream = tg.open_stream(path, features=features)
    assert stream.x_dim == (20_000 if features else 0)
    assert sum(map(len, stream)) == 3
    assert patterns
    assert max(map(len, patterns)) < 1_000


def test_header_that_is_too_long_is_refused(tmp_path):
    path = write(tmp_path / "wide.csv", 200_000)
    with pytest.raises(StreamError, match="line 1: the header has more than 1,048,576 bytes"):
        tg.open_stream(path)

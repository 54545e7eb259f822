"""Manifest values have the expected type or are refused by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from tgflow.checkpoint import UntrustedCheckpoint
from tgflow.checkpoint.typed import read_as, read_natural


@dataclass
class Pair:
    first: int
    rest: dict[str, tuple[float, float]] | None


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (int, True, "key is True, expected int"),
        (int, 2**70, "expected int"),
        (float, True, "expected float"),
        (float, float("nan"), "key is nan, expected float"),
        (Literal["a", 1], True, "key is True"),
        (list[int], [1, "x"], r"key\[1\] is 'x', expected int"),
        (dict[str, int], {"a": None}, r"key\.a is None"),
        (tuple[int, int], [1], r"key is \[1\]"),
        (tuple[int, ...], [1, "x"], r"key\[1\] is 'x', expected int"),
        (Pair, {"first": 1}, "key lacks 'rest'"),
        (Pair, {"first": 1, "rest": None, "more": 2}, "key has an unknown 'more'"),
        (Pair, {"first": 1, "rest": {"a": [1]}}, "key.rest"),
        (Pair | None, 5, "key is 5"),
    ],
)
def test_value_of_a_wrong_type_is_refused_by_its_key(kind, value, text):
    with pytest.raises(UntrustedCheckpoint, match=text):
        read_as(kind, value, "key")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, -(2**63)), (int | None, None), (Literal["a", 1], 1), (tuple[str, ...], ("a", "b"))],
)
def test_value_of_the_right_type_is_returned_unchanged(kind, value):
    assert read_as(kind, value, "key") == value


def test_negative_count_is_refused():
    assert read_natural({"n": 3}, "n") == 3
    for meta, text in (({"n": -1}, "n is -1"), ({}, "n is None"), ({"n": 2.0}, "n is 2.0")):
        with pytest.raises(UntrustedCheckpoint, match=text):
            read_natural(meta, "n")

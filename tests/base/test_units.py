"""Exact parsing of numbers from users and files."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.base.units import exact_number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        ("0.1", Fraction(1, 10)),
        (" -1.5e3 ", -1500),
        (0.1, Fraction(1, 10)),
        (np.float32(0.1), Fraction(1, 10)),
        (np.int64(2**62), 2**62),
        (Decimal("2.50"), Fraction(5, 2)),
        ("0", 0),
        (9 * 10**29, 9 * 10**29),
        (10**30, None),
        ("1e-30", None),
        ("1e-999999999", None),
        ("1e999999999", None),
        ("nan", None),
        (float("inf"), None),
        (True, None),
        (1j, None),
        ("", None),
        ("soon", None),
        ("1_000", None),
        ("0x10", None),
        ("\u0661", None),
        (b"3", None),
        (None, None),
    ],
)
def test_exact_number_returns_the_exact_value_or_none(value, expected):
    assert exact_number(value) == expected


@given(st.decimals(-(10**20), 10**20, places=9) | st.integers(-(2**63), 2**63))
def test_exact_number_of_a_string_matches_the_number(number):
    assert exact_number(str(number)) == exact_number(number) == Fraction(number)

"""Rows that travel between ranks to be stored: columns side by side, and apart again."""

from __future__ import annotations

import pytest
import torch

from tgflow.train.slice_parcels import _apart, _side_by_side


@pytest.mark.parametrize("num_rows", [0, 1, 2, 5])
@pytest.mark.parametrize("width", [1, 4, 19])
def test_columns_come_apart_as_they_were(num_rows, width):
    """Also behind one of an odd width, where nothing is aligned; and if there is but one row."""
    columns = [
        torch.randn(num_rows, width),
        torch.arange(num_rows) - 7,
        torch.rand(num_rows, width) < 0.5,
        torch.randn(num_rows, 2, dtype=torch.float64),
    ]
    found = _apart(_side_by_side(columns, num_rows), columns)
    for column, back in zip(columns, found, strict=True):
        assert back.dtype == column.dtype
        assert torch.equal(back, column)

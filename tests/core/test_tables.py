"""Feature tables: rows by id, zeros where there is none."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.tables import FeatureTable


def table_of(size: int, dim: int) -> tuple[FeatureTable, torch.Tensor]:
    rows = torch.arange(1.0, size * dim + 1).reshape(size, dim)
    table = FeatureTable(dim)
    for begin in range(0, size, 7):
        table.append(rows[begin : begin + 7])
    return table, rows


@given(size=st.integers(0, 50), dim=st.integers(1, 40), data=st.data())
def test_gather_matches_indexing(size: int, dim: int, data: st.DataObject) -> None:
    table, rows = table_of(size, dim)
    ids = torch.tensor(
        data.draw(st.lists(st.integers(-1, size - 1), max_size=30)), dtype=torch.int64
    )
    padded = torch.cat([rows, torch.zeros(1, dim)])
    assert torch.equal(table.gather(ids), padded[ids])
    assert torch.equal(table.gather(ids.reshape(1, -1, 1)), padded[ids].reshape(1, -1, 1, dim))


def test_gather_of_many_rows_into_a_given_tensor() -> None:
    table, rows = table_of(1_000, 3)
    ids = torch.randint(1_000, (200, 60), generator=torch.Generator().manual_seed(0))
    out = torch.full((60, 200, 3), torch.nan)
    assert table.gather(ids.t(), out) is out
    assert torch.equal(out, rows[ids.t()])


def test_gather_refuses_what_it_cannot_read_or_write() -> None:
    table, _ = table_of(5, 2)
    with pytest.raises(IndexError, match="id 5 is not in a table of 5 rows"):
        table.gather(torch.tensor([0, 5]))
    with pytest.raises(ValueError, match=r"ids must be int64, got int32"):
        table.gather(torch.tensor([0], dtype=torch.int32))
    with pytest.raises(
        ValueError, match=r"out must be contiguous float32 \[1, 2\], got float32 \[2, 2\]"
    ):
        table.gather(torch.tensor([0]), torch.empty(2, 2))

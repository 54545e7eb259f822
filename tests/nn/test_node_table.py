import pytest
import torch

from tgflow.nn import NodeTable


def table_of(size=8, unknown=0.0) -> NodeTable:
    torch.manual_seed(0)
    return NodeTable(size, 3, unknown)


def rows_of(table, nodes):
    return table(nodes, torch.ones_like(nodes, dtype=torch.bool))


def test_rows_of_padding_make_nothing_known():
    table = table_of()
    table(torch.tensor([3, 0, 0]), torch.tensor([True, False, False]))
    assert torch.equal(rows_of(table.eval(), torch.arange(7)), table.rows[[0, 0, 0, 4, 0, 0, 0]])


def test_nodes_are_unknown_until_they_are_learned_from():
    table, nodes = table_of().eval(), torch.tensor([2, 5])
    assert torch.equal(rows_of(table, nodes), table.rows[[0, 0]])
    rows_of(table.train(), torch.tensor([5]))
    assert torch.equal(rows_of(table.eval(), nodes), table.rows[[0, 6]])


def test_ids_beyond_the_table_share_rows_evenly():
    table = table_of(size=101)
    nodes = torch.arange(100, 100_100)
    row = table.row_of(torch.cat([nodes, torch.tensor([2**31 - 1, 2**62])]))
    assert table.row_of(torch.arange(100)).tolist() == list(range(1, 101))
    assert 1 <= int(row.min()) <= int(row.max()) <= 100
    counts = row[: len(nodes)].bincount(minlength=101)[1:]
    assert 850 < int(counts.min()) <= int(counts.max()) < 1150


def test_a_share_of_nodes_trains_the_unknown_row():
    table = table_of(size=1001, unknown=0.1)
    found = rows_of(table, torch.arange(1000))
    is_unknown = (found == table.rows[0]).all(dim=1)
    assert 60 < int(is_unknown.sum()) < 140
    found.sum().backward()
    assert table.rows.grad[0].tolist() == [float(is_unknown.sum())] * 3
    assert torch.equal(rows_of(table.eval(), torch.arange(1000)), table.rows[1:])


def test_a_table_needs_a_row_beside_the_unknown():
    with pytest.raises(ValueError, match="size of at least 2, got 1"):
        NodeTable(1, 3)

"""How often neighbors are shared: counts against a `Counter`, and their encoding."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import slow_batch
from tgflow.events import EventBatch
from tgflow.nn import Pairs
from tgflow.nn.co_occurrence import CoOccurrenceEncoding, co_occurrence


def counted(own, others, mask, pairs):
    """Do the same by counting words."""
    sequences = [
        [int(node), *(int(w) if is_there else None for w, is_there in zip(row, there, strict=True))]
        for node, row, there in zip(own, others, mask, strict=True)
    ]
    out = []
    for rows in zip(pairs.src_row.tolist(), pairs.dst_row.tolist(), strict=True):
        counters = [Counter(sequences[row]) for row in rows]
        out.append(
            [[[0 if w is None else c[w] for c in counters] for w in sequences[row]] for row in rows]
        )
    return torch.tensor(out, dtype=torch.int32).view(-1, 2, 1 + others.shape[1], 2)


@given(st.data())
def test_counts_match_a_counter(data):
    num, k = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 9))
    node = st.sampled_from([0, 1, 2, 3, 2**31 - 2, -(2**63), 2**63 - 1])
    draw = lambda what, *shape: torch.tensor(  # noqa: E731
        [data.draw(what) for _ in range(torch.Size(shape).numel())]
    ).view(shape)
    own, others = draw(node, num).long(), draw(node, num, k).long()
    mask = draw(st.booleans(), num, k).bool()
    num_pairs = data.draw(st.integers(0, 5))
    row = st.integers(0, num - 1)
    pairs = Pairs(draw(row, num_pairs).long(), draw(row, num_pairs).long())
    expected = counted(own, others, mask, pairs)
    nodes = torch.cat([own, others.flatten()])
    row = torch.arange(len(nodes))
    block = SimpleNamespace(target=row[:num], neighbor=row[num:].view(num, k), mask=mask)
    found = co_occurrence(SimpleNamespace(nodes=nodes, blocks=[block]), pairs)
    assert torch.equal(found, expected)


def test_counts_of_a_batch_are_of_nodes_and_not_of_rows():
    src, dst = torch.tensor([0, 1, 0, 0]), torch.tensor([2, 2, 3, 1])
    batch = slow_batch(EventBatch(src, dst, torch.arange(4)), 3, 1, (3,))
    counts = co_occurrence(batch, Pairs(batch.src_row, batch.dst_row))
    # 0 met 3 and 2, newest first, and 1 met 2; they have not met
    assert counts[0, 0].tolist() == [[1, 0], [1, 0], [1, 1], [0, 0]]
    assert counts[0, 1].tolist() == [[0, 1], [1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize(("length", "patch"), [(6, 1), (6, 3)])
def test_the_encoding_is_that_of_each_count_alone(length, patch):
    torch.manual_seed(0)
    encoding = CoOccurrenceEncoding(length, patch, 4, 5)
    counts = torch.randint(length + 1, (3, 2, length, 2), dtype=torch.int32)
    found = encoding(counts)
    both = encoding.encoded(encoding.hidden(counts.float().unsqueeze(-1)).relu()).sum(-2)
    expected = encoding.proj(both.view(3, 2, length // patch, -1))
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    parameters = list(encoding.parameters())
    ours = torch.autograd.grad((found * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    torch.testing.assert_close(ours, theirs)

"""How often neighbors are shared: counts against a `Counter`."""

from collections import Counter
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.nn import Pairs
from tgflow.nn.co_occurrence import co_occurrence


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

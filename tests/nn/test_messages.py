import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.nn import aggregate

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)


@settings(max_examples=tries(60), deadline=None)
@given(pairs=PAIRS, aggregator=st.sampled_from(["last", "mean"]))
def test_aggregate_matches_a_dict(pairs, aggregator):
    src = torch.tensor([a for a, _ in pairs], dtype=torch.int64)
    dst = torch.tensor([b for _, b in pairs], dtype=torch.int64)
    t = torch.arange(len(pairs)) // 2
    messages = torch.randn(2 * len(pairs), 3)
    received: dict[int, list[int]] = {}
    for i, pair in enumerate(pairs):
        for side, node in enumerate(pair):
            received.setdefault(node, []).append(2 * i + side)
    mail = aggregate(src, dst, t, messages, aggregator)
    assert mail.node.tolist() == sorted(received)
    for row, node, at, x in zip(mail.row, mail.node, mail.t, mail.x, strict=True):
        own = received[int(node)]
        assert int(row) == own[-1]
        assert int(at) == int(t[own[-1] // 2])
        expected = messages[own[-1]] if aggregator == "last" else messages[own].mean(0)
        torch.testing.assert_close(x, expected)

"""The peers as samplers: they find what tgflow finds, and are skipped where they are missing."""

import pytest
import torch

from benchmarks import peers
from benchmarks.samplers import OWN, contenders, library_rows, share_equal
from tgflow.bench.setup import wikipedia


@pytest.mark.parametrize("peer", peers.SAMPLERS, ids=lambda peer: peer.library)
def test_peers_find_the_same_recent_neighbors_where_they_are_installed(peer):
    events, k = wikipedia()[:600], 5
    present, absent = contenders(int(events.dst.max()) + 1, k)
    if peer.library in absent:
        pytest.skip(f"{peer.library} is {absent[peer.library]}")
    for at in range(0, 600, 4):  # of more than k events of a node, PyG keeps any k
        for library in (OWN, peer.library):
            present[library].insert(events[at : at + 4])
    nodes = torch.unique(torch.cat([events.src, events.dst]))
    t = torch.full_like(nodes, int(events.t[-1]) + 1)
    ours, theirs = (present[name].neighbors(nodes, t) for name in (OWN, peer.library))
    assert share_equal(ours, theirs) == 1.0


def test_a_library_that_is_not_installed_has_a_row_that_says_so():
    rows = list(library_rows("two hops", "us", {OWN: 2.0, "slow": 6.0}, {"none": "absent"}, {}))
    assert [row.ratio for row in rows] == [3.0, None, None]
    assert rows[2].params == {"library": "none", "skipped": "absent"}
    assert next(library_rows("two hops", "us", {OWN: 2.0}, {}, {})).baseline is None

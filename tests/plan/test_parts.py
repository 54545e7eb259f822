"""Fixed negatives, and batches in parts that together equal the whole."""

import pytest
import torch
from safetensors.torch import save_file

from helpers.made_streams import made_events
from tgflow import NodeIds, Plan, TemporalGraph
from tgflow.plan import NegativeSampler
from tgflow.plan.negatives import FixedNegatives

ITEMS = torch.arange(12, 32)


def ragged(first, counts):
    start = torch.tensor([0, *counts]).cumsum(0)
    return FixedNegatives(first, start, ITEMS.repeat(50)[: int(start[-1])])


def plan_of(negatives, **changes):
    settings = {
        "seed": 1, "batch_size": 20, "fanouts": (3,), "strategy": "recent", "visibility": "event",
        "with_memory": True, "negatives": negatives, **changes,
    }  # fmt: skip
    return Plan(TemporalGraph.from_events(made_events(100)), **settings)


def test_each_event_has_its_own_negatives_and_padding_that_is_masked():
    counts = [2, 0, 3, *[1] * 17]
    batch = plan_of(ragged(40, counts), start=40, stop=60).batch(0, 0)
    mask = batch.negative_mask
    assert mask.sum(1).tolist() == counts
    assert batch.negative_dst[mask].tolist() == ITEMS.repeat(50)[: sum(counts)].tolist()
    own = batch.dst.unsqueeze(1).expand(-1, 3)
    assert torch.equal(batch.negative_dst[~mask], own[~mask])
    assert torch.equal(batch.negative_src, batch.src.unsqueeze(1).expand(-1, 3))
    assert plan_of(ragged(40, [4] * 20), start=40, stop=60).batch(0, 0).negative_mask is None


@pytest.mark.parametrize("stop", [None, 61])
def test_event_without_negatives_is_named(stop):
    plan = plan_of(ragged(40, [2] * 20), start=41, stop=stop)
    with pytest.raises(
        ValueError, match=r"event 60 has no fixed negatives, .* 40 to 59; .*version"
    ):
        plan.batch(0, 0)


@pytest.mark.parametrize(
    ("start", "dst", "message"),
    [
        ([], [], "from 0 to the 0 negatives"),
        ([1, 2], [5, 5], "from 0 to the 2 negatives"),
        ([0, 3], [5, 5], "from 0 to the 2 negatives"),
        ([0, 2, 1, 2], [5, 5], "never decrease"),
    ],
)
def test_inconsistent_negatives_are_refused(start, dst, message):
    columns = (torch.tensor(column, dtype=torch.int64) for column in (start, dst))
    with pytest.raises(ValueError, match=message):
        FixedNegatives(0, *columns)


def test_negatives_file_uses_the_node_ids_of_the_stream(tmp_path):
    path = tmp_path / "x.test.negatives.safetensors"
    columns = {"start": torch.tensor([0, 1, 3]), "dst": torch.tensor([70, 50, 70])}
    save_file(columns, path)
    ids = NodeIds()
    ids.encode([50, 60], [60, 70])
    found = FixedNegatives.load(path, ids, 10)
    assert (len(found), found.num, found.dst.tolist()) == (2, 2, [2, 0, 2])
    with pytest.raises(ValueError, match=r"node 70 is not in the stream; .*version"):
        FixedNegatives.load(path, NodeIds(), 10)
    save_file({"start": torch.tensor([0.0]), "dst": columns["dst"]}, path)
    with pytest.raises(ValueError, match=r"start must be one column of int64"):
        FixedNegatives.load(path, ids, 10)
    path.write_text("no")
    with pytest.raises(ValueError, match="is not a file of negatives"):
        FixedNegatives.load(path, ids, 10)


def roots_of(batch):
    """Return the node queries of a batch: (node, position, neighbors' events) of each root."""

    def seen(row):
        block = batch.blocks[0]
        eid = block.eid[row].masked_fill(~block.mask[row], -1)
        lowest = block.target[row]
        parts = [batch.nodes[lowest], batch.position[lowest]]
        return torch.cat([*(x.unsqueeze(-1) for x in parts), eid], dim=-1)

    rows = (batch.src_row, batch.dst_row, batch.negative_src_row, batch.negative_dst_row)
    return [seen(row) for row in rows]


@pytest.mark.parametrize("visibility", ["event", "batch"])
@pytest.mark.parametrize(
    "negatives",
    [NegativeSampler(random=7), NegativeSampler(historical=7), ragged(40, [7, 2] * 30)],
    ids=["random", "historical", "fixed"],
)
def test_parts_of_a_batch_cover_the_whole(negatives, visibility):
    plan = plan_of(negatives, start=40, visibility=visibility)
    whole = plan.batch(2, 1)
    parts = [plan.part(2, 1, slice(a, a + 6)) for a in range(0, 20, 6)]
    assert [(part.num_new, part.host.begin, part.host.end) for part in parts] == [
        (num, 60, 80) for num in (6, 6, 6, 2)
    ]
    for name in ("eid", "src", "dst", "t", "negative_src", "negative_dst"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(whole, name))
    for joined, expected in zip(
        zip(*map(roots_of, parts), strict=True), roots_of(whole), strict=True
    ):
        assert torch.equal(torch.cat(joined), expected)
    if whole.negative_mask is not None:
        assert torch.equal(torch.cat([part.negative_mask for part in parts]), whole.negative_mask)
    few = plan.part(2, 1, slice(0, 20), 2)
    assert torch.equal(few.negative_dst, whole.negative_dst[:, :2])


def test_parts_of_a_block_cover_its_targets():
    (block,) = plan_of(NegativeSampler(random=7)).batch(0, 2).blocks
    parts = [*block.parts(16)]
    assert [len(part.target) for part in parts[:-1]] == [16] * (len(parts) - 1)
    for name in ("target", "neighbor", "mask", "dt", "eid", "edge_row"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(block, name))
    assert all(part.edge_table is block.edge_table for part in parts)
    assert [*block.parts(len(block.target))] == [block]


def test_selected_events_are_planned_on_the_whole_graph():
    only = torch.tensor([30, 31, 44, 60, 90])
    plan = plan_of(NegativeSampler(random=2), batch_size=2, only=only)
    batches = [plan.batch(0, index) for index in range(len(plan))]
    assert [b.eid.tolist() for b in batches] == [[30, 31], [44, 60], [90]]
    assert [(b.num_new, b.host.begin, b.host.end) for b in batches] == [
        (2, 30, 32), (2, 44, 61), (1, 90, 91),
    ]  # fmt: skip
    every = plan_of(NegativeSampler(random=2), batch_size=1).batch(0, 60)
    row, own = batches[1].src_row[1], every.src_row[0]
    assert torch.equal(batches[1].blocks[0].eid[row], every.blocks[0].eid[own])
    with pytest.raises(IndexError, match="no batch 3; the plan has 3"):
        plan.batch(0, 3)
    with pytest.raises(ValueError, match="neither start, stop nor replay"):
        plan_of(NegativeSampler(random=1), only=only, start=2)

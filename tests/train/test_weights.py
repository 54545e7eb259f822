"""Losses and event weights: read from every kind of stream, logged, and applied."""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn.functional import softplus

import tgflow as tg
from helpers.kafka_io import CODECS, arrow, decode
from helpers.live_runs import SMALL, figures
from helpers.made_streams import made_events, small_tgn
from tgflow.cli import main
from tgflow.graph.batch import Share
from tgflow.nn.model import Scores
from tgflow.train.losses import LOSSES
from tgflow.train.sliced_step import SlicedStep


def weighted(weight, size=60):
    events = made_events(size)
    return tg.EventBatch(events.src, events.dst, events.t, events.x, weight=weight)


def learned(events, slices=1, **options):
    """Return the parameters after a step on one batch of `events`, and its loss."""
    model = small_tgn(dropout=0.0)
    graph = tg.TemporalGraph.from_events(events)
    plan = tg.Plan.for_model(model, graph, batch_size=10, slices=slices)
    batch = (
        plan.batch(0, 3) if slices == 1 else Share.of([plan.batch(0, 3, n) for n in range(slices)])
    )
    step = SlicedStep(model, tg.ContinualConfig(learning_rate=1e-2), **options)
    loss = step.learn(batch).loss
    return torch.cat([p.detach().flatten() for p in model.parameters()]), loss


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("loss", [*LOSSES])
def test_weights_of_one_match_no_weights(loss, slices):
    expected, expected_loss = learned(weighted(None), slices, loss=loss)
    found, found_loss = learned(weighted(torch.ones(60)), slices, loss=loss)
    assert torch.equal(found, expected)
    assert found_loss == expected_loss


@pytest.mark.parametrize("loss", LOSSES.values())
def test_loss_is_the_mean_by_weights_and_events_of_weight_zero_have_no_gradient(loss):
    weight = torch.tensor([2.0, 0.0, 0.5, 0.0])
    positive = torch.randn(4, requires_grad=True)
    negative = torch.randn(4, 3, requires_grad=True)
    found = loss(Scores(positive, negative), weight=weight)
    each = [loss(Scores(positive[i : i + 1], negative[i : i + 1])) for i in range(4)]
    expected = sum(w * x for w, x in zip(weight, each, strict=True)) / weight.sum()
    assert found.item() == pytest.approx(expected.item())
    found.backward()
    assert not positive.grad[weight == 0].any()
    assert not negative.grad[weight == 0].any()
    assert positive.grad[weight > 0].all()
    scores = Scores(torch.ones(3), torch.ones(3, 2))
    for scale in (0.0, 1e-44, 3e38):
        found = loss(scores, weight=torch.full((3,), scale))
        assert found.item() == pytest.approx(loss(scores).item() if scale else 0.0, rel=0.1)


def test_user_loss_takes_weights_or_is_refused():
    def plain(scores):
        return softplus(-scores.positive).mean()

    def by_weight(scores, weight=None):
        assert weight is not None
        return (softplus(-scores.positive) * weight).mean()

    learned(weighted(None), loss=plain)
    learned(weighted(torch.rand(60)), loss=by_weight)
    with pytest.raises(ValueError, match=r"plain takes no weight, .*plain\(scores, weight=None\)"):
        learned(weighted(torch.rand(60)), loss=plain)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_batches_refuse_invalid_weights(value):
    with pytest.raises(ValueError, match=r"weight of event 3 is .*; weights must be finite"):
        weighted(torch.ones(60).index_fill(0, torch.tensor([3]), value))


def test_log_requires_weights_of_all_events_or_none():
    graph, weight = tg.TemporalGraph(edge_x_dim=made_events(1).x_dim), torch.rand(60)
    events = weighted(weight)
    for start, stop in ((0, 0), (0, 7), (7, 8), (8, 60)):
        graph.append(events[start:stop])
    assert torch.equal(graph.log.read(5, 40).weight, weight[5:40])
    eid = torch.tensor([9, 3, 50])
    assert torch.equal(graph.log.gather(eid).weight, weight[eid])
    with pytest.raises(ValueError, match="the log has some weights, the batch has none"):
        graph.append(made_events(1)[:1], allow_late=True)


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_records_carry_weights(codec):
    values = {
        "csv": [b"5,6,7,0.5", b"5,6,8,-1"],
        "json": [b'{"src":5,"dst":6,"t":7,"w":0.5}', b'{"src":5,"dst":6,"t":8,"w":-1}'],
    }.get(codec) or [arrow([5], [6], [t], False, w=pa.array([w])) for t, w in ((7, 0.5), (8, -1.0))]
    reading = decode(values, codec, weight="w", features=())
    assert np.concatenate([each.events.weight for each in reading.arrivals]).tolist() == [0.5]
    assert reading.codes == ["range"]


ROWS = {
    "src": [i * i % 7 for i in range(150)],
    "dst": [7 + i * 3 % 5 for i in range(150)],
    "t": [*range(150)],
    "w": [i % 4 / 2 for i in range(150)],
}
BAD = {"": "null", "-1": "range", "inf": "inf", "1e39": "inf", "x": "type"}


def write(path, ones=False):
    rows = ROWS | ({"w": [1.0] * len(ROWS["t"])} if ones else {})
    lines = zip(*rows.values(), strict=True)
    path.write_text("src,dst,t,w\n" + "".join(f"{','.join(map(str, x))}\n" for x in lines))
    return path


def run(out, stream, *flags):
    words = ["run", "-s", stream, "-o", out, "--time-unit", "s", "--model", "tgn", *SMALL, *flags]
    assert main([str(word) for word in words]) == 0
    return out


def test_runs_learn_by_weights(tmp_path):
    stream = write(tmp_path / "w.csv")
    by_weight = run(tmp_path / "csv", stream, "--weight", "w")
    plain = run(tmp_path / "plain", stream)
    ones = run(tmp_path / "ones", write(tmp_path / "ones.csv", ones=True), "--weight", "w")
    losses = [[step["loss"] for step in figures(each)[2]] for each in (by_weight, plain, ones)]
    assert losses[0] != losses[1] == losses[2]


@pytest.mark.parametrize(("text", "code"), BAD.items())
def test_rows_with_bad_weights_are_refused_with_their_location(tmp_path, text, code):
    path = tmp_path / "bad.csv"
    path.write_text(f"src,dst,t,w\n0,1,2,0.5\n0,1,3,{text}\n")
    stream = tg.open_stream(path, time_unit="s", weight="w")
    with pytest.raises(tg.streams.StreamError, match=r"bad\.csv, line 3: w ") as caught:
        list(stream)
    assert caught.value.code == code

"""Heuristic baselines, against a scan of every event before a query."""

import itertools
import math
from collections import Counter

import pytest
import torch

from helpers.made_models import batches_of, changed, made_events, made_model, plan_for
from tgflow.base.metrics import ranks
from tgflow.graph import TemporalGraph
from tgflow.models import EdgeBankTW, EdgeBankTWConfig, Recency, RecencyConfig
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.offline import OfflineTrainer

STREAM = made_events(60)
WITH_LOOPS = changed(STREAM, dst=torch.where(torch.arange(60) % 7 == 0, STREAM.src, STREAM.dst))
RULES = ["LR>GR", "LR>GP", "LR>LP", "LP>GR", "LP>GP", "LR", "LP", "GR", "GP"]


def pairs_of(batch):
    """Yield each event's time, and its pair followed by those of its negatives."""
    for row, t in enumerate(batch.t.tolist()):
        negatives = zip(
            batch.negative_src[row].tolist(), batch.negative_dst[row].tolist(), strict=True
        )
        yield t, [(int(batch.src[row]), int(batch.dst[row])), *negatives]


def before(events, t):
    rows = zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True)
    return [row for row in rows if row[2] < t]


def key(events, name, pair, t, direction):
    """Return the sort key of a rule, higher for likelier: minus infinity for never."""
    wanted = {pair, pair[::-1]} if direction == "both" else {pair}
    times = [
        at
        for u, v, at in before(events, t)
        if (v == pair[1] if name[0] == "G" else (u, v) in wanted)
    ]
    if not times:
        return -math.inf
    return float(max(times) - t) if name[1] == "R" else float(len(times))


def plain_score(rule, keys):
    """Return the score of a rule from its sort keys, by the formulas in plain Python."""
    seen = [math.isfinite(x) for x in keys]
    sizes = [-x if name[1] == "R" else x for name, x in zip(rule.split(">"), keys, strict=True)]
    if not seen[0]:
        if len(keys) == 1 or not seen[1]:
            return -(2.0**65)
        return -1 - sizes[1] if rule[-1] == "R" else -1 - 2**20 / (1 + sizes[1])
    share = 1 / (1 + math.log2(1 + sizes[-1])) if len(keys) > 1 and seen[1] else 0.0
    if len(keys) > 1 and seen[1] and rule[-1] == "P":
        share = 1 - share
    return (share - 1 - sizes[0]) * 2.0**-64 if rule[1] == "R" else -1 / (1 + sizes[0] + share)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("direction", ["both", "forward"])
def test_recency_rule_orders_pairs_lexicographically(rule, direction):
    model = Recency(RecencyConfig(rule=rule, direction=direction))
    scored = []
    for batch in batches_of(plan_for(model, WITH_LOOPS)):
        scores = model(batch)
        assert scores.positive.dtype == torch.float64
        rows = torch.cat([scores.positive[:, None], scores.negative], dim=1).tolist()
        for (t, pairs), found in zip(pairs_of(batch), rows, strict=True):
            for pair, score in zip(pairs, found, strict=True):
                keys = [key(WITH_LOOPS, name, pair, t, direction) for name in rule.split(">")]
                assert score == pytest.approx(plain_score(rule, keys), rel=1e-14)
                scored.append((keys, score))
    for (a, x), (b, y) in itertools.pairwise(sorted(scored)):
        assert x < y if a < b else x == y


@pytest.mark.parametrize("rule", ["LR>GR", "LR>GP"])
def test_local_and_global_rule_has_the_ranks_of_one_that_scores_then_stores(rule):
    """LocalGlobal as published: the pair's last time, then that of its destination, in order."""
    model, worths, plain = made_model("recency", rule=rule, direction="forward"), [], []
    pair, last, num = {}, {}, Counter()
    for batch in batches_of(plan_for(model, STREAM, visibility="batch", num_negatives=20)):
        scores = model(batch)
        worths += ranks(scores.positive, scores.negative).reciprocal().tolist()
        for _, pairs in pairs_of(batch):
            second = num if rule == "LR>GP" else last
            # a pair's time leads; others are in the order of the destination's number or time
            keys = [(pair.get(each, -1), second.get(each[1], -1)) for each in pairs]
            above = sum(key > keys[0] for key in keys[1:])
            plain.append(1 / (1 + above + keys[1:].count(keys[0]) / 2))
        for u, v, t in zip(batch.src.tolist(), batch.dst.tolist(), batch.t.tolist(), strict=True):
            pair[u, v] = last[v] = t
            num[v] += 1
    assert worths == pytest.approx(plain, abs=1e-12)  # float64, of small integers
    assert 0.05 < sum(plain) / len(plain) < 1


class PlainEdgeBank:
    """EdgeBank as TGB defines it: scores a batch, then stores it."""

    def __init__(self, window=math.inf):
        self.window, self.seen = window, {}

    def score(self, pair, t):
        return float(pair in self.seen and t - self.seen[pair] <= self.window)

    def store(self, batch):
        for u, v, t in zip(batch.src.tolist(), batch.dst.tolist(), batch.t.tolist(), strict=True):
            self.seen[u, v] = t


@pytest.mark.parametrize("window", [math.inf, 20.0, 60.0])
def test_edgebank_matches_tgb(window):
    model, plain = made_model("edgebank"), PlainEdgeBank(window)
    if window < math.inf:
        model = EdgeBankTW(EdgeBankTWConfig(window=window))
    values = set()
    for batch in batches_of(plan_for(model, STREAM, visibility="batch")):
        expected = [[plain.score(pair, t) for pair in pairs] for t, pairs in pairs_of(batch)]
        scores = model(batch)
        assert torch.cat([scores.positive[:, None], scores.negative], dim=1).tolist() == expected
        values |= set(itertools.chain(*expected))
        plain.store(batch)
    assert values == {0.0, 1.0}


def test_poptrack_counts_with_decay_at_every_event():
    model = made_model("poptrack", decay=0.3)
    for batch in batches_of(plan_for(model, STREAM)):
        for (t, pairs), found in zip(pairs_of(batch), model(batch).negative.tolist(), strict=True):
            past = before(STREAM, t)
            for (_, v), score in zip(pairs[1:], found, strict=True):
                ages = [len(past) - i for i, row in enumerate(past) if row[1] == v]
                assert score == pytest.approx(sum(0.3 ** (age / 200) for age in ages))


@pytest.mark.parametrize("window", [20.0, 70.0, 1e9])
@pytest.mark.parametrize("visibility", ["event", "batch"])
def test_popularity_within_a_window_counts_its_events(window, visibility):
    model, found = made_model("poptrack", window=window), set()
    for batch in batches_of(plan_for(model, STREAM, visibility=visibility)):
        seen = STREAM if visibility == "event" else STREAM[: int(batch.host.begin)]
        for (t, pairs), scores in zip(pairs_of(batch), model(batch).negative.tolist(), strict=True):
            past = [row for row in before(seen, t) if t - row[2] <= window]
            expected = [sum(row[1] == v for row in past) for _, v in pairs[1:]]
            assert scores == expected
            found |= {*expected}
    assert len(found) > 1
    with pytest.raises(ValueError, match="give decay or window, got both"):
        made_model("poptrack", window=window, decay=0.5)


def with_relations(events, num=3):
    return changed(events, relation=torch.arange(len(events)) * 7 % 5 % num)


def recurrency(past, s, r, o, t, decay, alpha, step):
    """Return the score of the paper's equations, with all past steps in the denominator."""
    of_pair = [row for row in past if row[:2] == (s, o) and row[3] == r]
    of_relation = [row for row in past if row[3] == r]
    psi = sum(2 ** (decay * (row[2] - t) / step) for row in of_pair) * (2**decay - 1)
    xi = sum(row[1] == o for row in of_relation) / max(1, len(of_relation))
    return alpha * psi + (1 - alpha) * xi


@pytest.mark.parametrize(("decay", "alpha"), [(0.1, 0.0), (0.5, 0.9), (1.0, 1.0)])
def test_recurrency_baseline_matches_the_equations(decay, alpha):
    events = with_relations(STREAM)
    model = made_model("recurrency", decay=decay, alpha=alpha, step=5.0)
    columns = events.src, events.dst, events.t, events.relation
    rows, found = [*zip(*(each.tolist() for each in columns), strict=True)], set()
    for batch in batches_of(plan_for(model, events)):
        scores = model(batch)
        got = torch.cat([scores.positive[:, None], scores.negative], dim=1).tolist()
        for (t, pairs), relation, each in zip(
            pairs_of(batch), batch.relation.tolist(), got, strict=True
        ):
            past = [row for row in rows if row[2] < t]
            wanted = [recurrency(past, u, relation, v, t, decay, alpha, 5.0) for u, v in pairs]
            assert each == pytest.approx(wanted)  # float64 in another order
            found |= {*wanted}
    assert len(found) > 3


def test_recurrency_baseline_is_fitted_per_relation_on_validation():
    """Relation 0 repeats pairs, relation 1 has popular destinations and no repeated pair."""
    size, i = 1200, torch.arange(1200)
    repeats, turn = i % 2 == 0, i // 2
    src = torch.where(repeats, turn % 40, 1000 + turn)
    dst = torch.where(repeats, 100 + turn % 40, 100 + turn % 3)
    events = changed(made_events(size), src=src, dst=dst, relation=(~repeats).long())
    model = made_model("recurrency", step=1.0)
    graph = TemporalGraph.from_events(events)
    config = OfflineConfig(batch_size=20, select="mrr", mrr_negatives=20, new_node_ratio=0.0)
    result = OfflineTrainer(model, graph, config).fit()
    leads = {r: own.lead for r, own in model.state.by_relation.items()}
    alphas = {r: model.candidates[lead][1] for r, lead in leads.items()}
    assert alphas[0] > 0 == alphas[1]
    copy = made_model("recurrency", step=1.0)
    copy.state.load_state_dict(model.state.state_dict())
    assert {r: own.lead for r, own in copy.state.by_relation.items()} == leads
    alone = [
        OfflineTrainer(made_model("recurrency", step=1.0, decay=d, alpha=a), graph, config).fit()
        for d, a in ((1.0, 0.0), (1.0, 1.0))
    ]
    assert result["test.mrr"] > max(each["test.mrr"] for each in alone)


def popular(size):
    """A stream without repeated pairs, most with one of two destinations."""
    src = torch.arange(size) % 50
    dst = torch.where(torch.arange(size) % 5 == 0, 52 + torch.arange(size) % 7, 50 + src % 2)
    return changed(made_events(size), src=100 + torch.arange(size), dst=dst)


def test_best_heuristic_so_far_scores_and_is_named():
    model = made_model("recency")
    result = ContinualTrainer(
        model, TemporalGraph("undirected", 2), ContinualConfig(batch_size=20)
    ).run([popular(400)])
    merits = model.state.state_dict()["merits"]
    assert result["rule"] == model.candidates[int(merits.argmax())]
    assert result["rule"] in ("GP", "GR", "LR>GP")
    assert result["num_parameters"] == 0
    means = dict.fromkeys(model.candidates, 0.0)
    for name in means:
        given = made_model("recency", rule=name)
        graph = TemporalGraph("undirected", 2)
        run = ContinualTrainer(given, graph, ContinualConfig(batch_size=20)).run([popular(400)])
        means[name] = run["prequential.ap"]
    assert (merits / 20).tolist() == pytest.approx(list(means.values()))


@pytest.mark.parametrize(("select", "num"), [("ap", 20), ("mrr", 20), ("mrr", "all")])
def test_offline_trainer_chooses_the_rule_by_its_selecting_metric(select, num):
    graph = TemporalGraph.from_events(popular(600))
    config = OfflineConfig(batch_size=20, select=select, mrr_negatives=num, new_node_ratio=0.0)

    def trained(model):
        return OfflineTrainer(model, graph, config).fit()

    model = made_model("recency")
    result, rules = trained(model), model.candidates
    alone = [trained(made_model("recency", rule=rule))[f"val.{select}"] for rule in rules]
    merits = model.state.state_dict()["merits"]
    assert (merits / merits.sum()).tolist() == pytest.approx([x / sum(alone) for x in alone])
    assert result["rule"] == rules[int(merits.argmax())]

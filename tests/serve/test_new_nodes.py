"""Scores of nodes, relations and categories never seen: those of their first events."""

import random

import pyarrow as pa
import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from helpers.made_models import made_model
from helpers.made_streams import seeded
from tgflow.graph import FeatureScale
from tgflow.graph.tables import FeatureTable
from tgflow.train.tasks import LabelTask, TaskConfig

BATCH, KNOWN, NOW = 20, 120, 5_000
NEXT = [
    ("u1", "s1"),
    ("new", "s1"),
    ("u1", "new"),
    ("new", "other"),
    ("twin", "twin"),
    ("u2", "s3"),
]
KINDS = ("card", "cash", "crypto")
X_DIM = 5
READ_FEATURES = ("tgn+pairs", "jodie", "graphmixer+pairs", "tgat", "tpnet", "dygformer")
MODELS = cases(
    [
        "tgn+pairs",
        "jodie",
        "counts",
        "recency",
        "graphmixer+pairs",
        "tgat",
        "edgebank",
        "dygformer",
        "craft",
    ],
    ["tgn+pairs", "counts"],
)


def payments(is_bipartite):
    """Columns of payments; the last six are at one time, by new accounts and with a new kind."""
    rng = random.Random(3)
    pairs = [(f"u{rng.randrange(9)}", f"s{rng.randrange(5)}") for _ in range(KNOWN)] + NEXT
    num = len(pairs)
    return {
        "src": [u for u, _ in pairs],
        "dst": [v if is_bipartite or v[0] != "s" else f"u{v[1:]}" for _, v in pairs],
        "t": [10 * i for i in range(KNOWN)] + [NOW] * len(NEXT),
        "amount": [round(rng.expovariate(0.1), 2) for _ in range(num)],
        "kind": [rng.choice(KINDS[:2]) for _ in range(KNOWN)] + [KINDS[i // 2] for i in range(6)],
        "relation": [rng.choice(("buy", "sell")) for _ in range(KNOWN)] + ["buy", "gift"] * 3,
        "label": [rng.randrange(2) for _ in range(num)],
    }


def learned(name, table, *, is_bipartite, with_task):
    """Return a trainer that has predicted and stored payments, and its last step."""
    stream = tg.open_stream(
        table,
        time_unit="s",
        features=["amount"],
        categorical="kind",
        max_categories=3,
        relation="relation",
        label="label",
        bipartite=is_bipartite,
    )
    model = made_model(name, edge_x_dim=X_DIM) if name in READ_FEATURES else made_model(name)
    task = TaskConfig(kind="edge", target="label") if with_task else TaskConfig()
    if with_task:
        seeded(lambda: LabelTask(task).add_decoder(model, X_DIM))
        seeded(lambda: torch.nn.init.normal_(model.label_decoder.out.weight))
    direction, scale = "bipartite" if is_bipartite else "undirected", FeatureScale("auto", KNOWN)
    graph = tg.TemporalGraph(direction, X_DIM, time_unit="s", feature_scale=scale)
    settings = tg.ContinualConfig(batch_size=BATCH, updates=0, task=task)
    trainer = tg.ContinualTrainer(model, graph, settings, scores=True)
    *_, last = trainer.steps(stream)
    return trainer, last


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_bipartite", [False, True])
def test_scores_of_new_nodes_are_those_of_their_first_events(name, is_bipartite):
    table = payments(is_bipartite)
    how = {"is_bipartite": is_bipartite, "with_task": name in ("tgn+pairs", "jodie")}
    begun, _ = learned(name, {key: column[:KNOWN] for key, column in table.items()}, **how)
    run, num_ids = tg.open_run(begun), len(begun.ids)
    columns = ["src", "dst", "t", "relation", "label", *(["amount", "kind"])]
    asked = pa.table({key: table[key][KNOWN:] for key in columns})
    found = run.score(asked)
    assert found.src == table["src"][KNOWN:]
    assert found.dst == table["dst"][KNOWN:]
    assert found.new == [None, "src", "dst", "both", "both", None]
    top = run.top_k("new", k=3, at=NOW, relation="buy")
    alone = run.score(["new"] * 3, top.dst, NOW, "buy")
    assert torch.equal(top.logit, alone.logit)
    assert top.new == ["src"] * 3
    assert torch.equal(run.score(asked).logit, found.logit)
    assert len(run.ids) == num_ids, "questions add no ids"

    _, last = learned(name, table, **how)
    assert last.start == KNOWN
    # but for rounding where `predict` projects neighbors once for many targets
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found.logit, last.scores.logit, **close)
    torch.testing.assert_close(found.probability, last.scores.probability, **close)
    if how["with_task"]:
        share = last.scores.label_probability
        torch.testing.assert_close(found.label_probability, share, **close)
        assert len(set(share.tolist())) == len(NEXT)


@pytest.mark.parametrize("is_bipartite", cases([False, True], [True]))
def test_tpnet_scores_new_nodes_as_those_of_the_next_event(is_bipartite):
    """Its random signs are those of the dense ids that new nodes would get."""
    table, how = payments(is_bipartite), {"is_bipartite": is_bipartite, "with_task": False}
    before = {key: column[:KNOWN] for key, column in table.items()}
    run = tg.open_run(learned("tpnet", before, **how)[0])
    for i in range(len(NEXT)):
        row = {key: [column[KNOWN + i]] for key, column in table.items()}
        together = {key: before[key] + row[key] for key in table}
        expected = learned("tpnet", together, **how)[1].scores.logit
        found = run.score(row["src"], row["dst"], NOW, row["relation"])
        torch.testing.assert_close(found.logit, expected, rtol=1e-5, atol=1e-5)
        why = run.explain(row["src"][0], row["dst"][0], NOW, row["relation"][0])
        assert why.logit == pytest.approx(expected.item(), abs=1e-5)
        parts = why.baseline + sum(group.logit for group in why.groups)
        assert parts == pytest.approx(why.logit, abs=1e-5)  # float32


FEATURES = [
    ({"amount": 5.0, "kind": "card"}, [5, 1, 0, 0, 0]),
    ({"amount": True, "kind": "new"}, [1, 0, 0, 1, 0]),
    ({"amount": -1, "kind": None}, [-1, 0, 0, 0, 1]),
]


def event_features(**options):
    from tgflow.serve.event_features import EventFeatures
    from tgflow.streams.options import StreamOptions

    known = {"kind": ("card", "cash")}
    stream = StreamOptions(features=["amount"], categorical="kind", **options)
    return EventFeatures(stream, {"amount": 1, "kind": 4}, lambda name: known[name])


def test_features_by_name_are_encoded_as_those_of_the_next_event():
    rows = [row for row, _ in FEATURES]
    expected = torch.tensor([x for _, x in FEATURES], dtype=torch.float32)
    found = event_features()
    assert torch.equal(found.rows(rows, 3, 5), expected)
    assert torch.equal(found.rows(rows[0], 3, 5), expected[[0, 0, 0]])
    filled = event_features(fill_missing=7.0)
    assert filled.rows([{}, {"amount": None}], 2, 5).tolist() == [[7, 0, 0, 0, 1]] * 2


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"kind": "card"}, "x of event 0 has no 'amount'; give it, or start the run with a value"),
        ({"amount": None, "kind": "card"}, "x of event 0: amount is missing"),
        ({"amount": "much", "kind": "card"}, "x of event 0: amount is"),
        ({"amount": 1, "kind": "card", "knd": 1}, "'knd' is no feature column of the stream"),
        ([{"amount": 1, "kind": "card"}] * 2, "x must be one for all of 1 events, or one for each"),
        ([[1.0, 0, 0, 0, 0]], "x must have the columns of each event by name: amount, kind"),
        (pa.table({"kind": ["card"]}), "x has no 'amount'"),
    ],
)
def test_missing_and_unknown_features_are_named(x, message):
    with pytest.raises(ValueError, match=message):
        event_features().rows(x, 1, 5)


@pytest.mark.parametrize("name", ["tgn+pairs", "jodie"])
def test_new_nodes_have_the_features_of_their_rows(name):
    rows = {"id": ["a", "b", "c", "d", "e"], "age": [31.0, 47.0, 5.0, 9.0, -2.0]}
    src, dst, t = ["a", "b", "a", "b", "d", "a"], ["b", "c", "c", "a", "e", "e"], [1, 2, 3, 4, 9, 9]

    def learned(size):
        nodes = tg.NodeFeatures(rows, id="id")
        stream = nodes.along(tg.open_stream((src[:size], dst[:size], t[:size]), time_unit="s"))
        scale = FeatureScale("standard", 3)  # frozen before the new nodes
        graph = tg.TemporalGraph(node_x=FeatureTable(1), feature_scale=scale, time_unit="s")
        model = made_model(name, edge_x_dim=0, node_x_dim=1)
        trainer = tg.ContinualTrainer(
            model, graph, tg.ContinualConfig(batch_size=4, updates=0), scores=True
        )
        *_, last = trainer.steps(stream)
        return tg.open_run(trainer), last

    run, _ = learned(4)
    found = run.score(src[4:], dst[4:], 9)
    assert found.new == ["both", "dst"]
    expected = learned(6)[1].scores.logit
    torch.testing.assert_close(found.logit, expected, rtol=1e-5, atol=1e-5)
    assert found.logit[1] != run.score("a", "d", 9).logit[0]
    why = run.explain("a", "e", 9)
    assert why.logit == pytest.approx(found.logit[1].item(), abs=1e-5)  # float32
    assert run.embed(["d", "e"], 9).unique(dim=0).shape[0] == 2
    with pytest.raises(ValueError, match=r"features of a new node are unknown: .* no row for node"):
        run.score("a", "z", 9)

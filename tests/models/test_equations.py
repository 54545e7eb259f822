"""Whole models against their equations, pair by pair, on a scan of earlier events."""

from collections import Counter
from functools import cache

import torch

from helpers.made_models import X_DIM, made_events, made_model
from helpers.plans import made_batch, recent

EVENTS, SIZE = made_events(60), 20
NODE_DIM = 3
NODE_X = torch.randn(12, NODE_DIM, generator=torch.Generator().manual_seed(2))


def batch_of(model, index):
    node_x = NODE_X if getattr(model, "node_x_dim", None) else None
    return made_batch(EVENTS, index, SIZE, model.fanouts, node_x=node_x)


def third_batch(model):
    """Return a batch for a model that has stored the two before."""
    model.eval()
    for index in range(2):
        batch = batch_of(model, index)
        model.commit(batch, model(batch))
    return batch_of(model, 2)


@cache
def met(node, t, k):
    """Return a node's neighbors before the third batch: (neighbor, tick, event), newest first."""
    return recent(EVENTS, node, t, k, 2 * SIZE)


def asked(batch):
    """Yield the scored pairs and their times: the events, then the negatives of each."""
    events = list(zip(batch.src.tolist(), batch.dst.tolist(), batch.t.tolist(), strict=True))
    yield from events
    for (src, _, t), others in zip(events, batch.negative_dst.tolist(), strict=True):
        yield from ((src, dst, t) for dst in others)


def check(model, batch, score):
    found = model(batch)
    expected = torch.stack([score(*each) for each in asked(batch)])
    scores = torch.cat([found.positive, found.negative.flatten()])
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert len(set(scores.tolist())) > SIZE  # scores depend on the query


def padded(rows, length):
    """Return the rows of a sequence, at least one, padded with zeros."""
    return torch.cat([torch.stack(rows), rows[0].new_zeros(length - len(rows), len(rows[0]))])


def seconds(then, t):
    return torch.tensor(float(t - then))


def merged(layer, left, right=None):
    """W2 relu(W1 [left | right] + b1) + b2."""
    hidden = layer.left_proj(left)
    return layer.out((hidden if right is None else hidden + layer.right_proj(right)).relu())


def linked(decoder, src, dst):
    logit = decoder.out((decoder.src_proj(src) + decoder.dst_proj(dst)).relu())
    return logit.squeeze()


@torch.no_grad()
def test_jodie_embedding_drifts_with_the_time_since_the_last_event():
    model = made_model("jodie", node_x_dim=NODE_DIM)
    batch = third_batch(model)

    @cache
    def embedded(node, t):
        rows = model.state.read(torch.tensor([node]), torch.tensor([2 * SIZE]))
        h = model.updater(rows, 1.0)[0] + model.node_x_proj(NODE_X[node])
        latest = met(node, t, 1)
        delta = seconds(latest[0][1] if latest else t, t).log1p() / 8 - 1
        return h * (1 + model.drift(delta.view(1)))

    check(model, batch, lambda u, v, t: linked(model.decoder, embedded(u, t), embedded(v, t)))


@torch.no_grad()
def test_graphmixer_embedding_has_mean_mixed_tokens_and_neighbor_features():
    model = made_model("graphmixer", node_x_dim=NODE_DIM, layers=2)
    batch = third_batch(model)

    @cache
    def embedded(node, t):
        slots, k = met(node, t, model.config.neighbors), model.config.neighbors
        none = torch.zeros(1, model.tokens.proj.in_features)
        tokens = [torch.cat([EVENTS.x[e], model.tokens.time(seconds(s, t))]) for _, s, e in slots]
        x = model.tokens.proj(padded(tokens, k) if tokens else none.repeat(k, 1)).unsqueeze(0)
        for mixer in (*model.mixers, model.last_mixer):
            x = mixer(x)
        around = NODE_X[node]
        if slots:
            around = around + NODE_X[[w for w, _, _ in slots]].mean(0)
        return model.out(torch.cat([x[0].mean(0), around]))

    check(model, batch, lambda u, v, t: linked(model.decoder, embedded(u, t), embedded(v, t)))


@torch.no_grad()
def test_craft_candidates_attend_to_past_partners_of_the_source():
    model = made_model("craft", table_size=16).train()
    few = made_batch(EVENTS, 0, 3, model.fanouts)
    model(few)  # makes some nodes known
    model.eval()
    known, k = model.table.seen, model.config.neighbors
    assert 0 < int(known.sum()) < 12
    row = model.table.rows

    def embedded(node):
        return row[1 + node] if known[1 + node] else row[0]

    def score(u, v, t):
        slots = met(u, t, k)
        tokens = [
            model.key_norm(embedded(w) + model.position[place])
            for place, (w, _, _) in enumerate(slots)
        ]
        sequence = padded(tokens, k) if tokens else torch.zeros(k, row.shape[1])
        mask = (torch.arange(k) < len(slots)).unsqueeze(0)
        x = model.query_norm(embedded(v)).unsqueeze(0)
        for layer in model.attention:
            x = layer(x, layer.keys(sequence.unsqueeze(0)), mask, torch.tensor([0]))
        latest = met(v, t, 1)
        age = model.age(seconds(latest[0][1], t).log1p().view(1) / 16) if latest else model.never
        times = torch.tensor([float(sum(w == v for w, _, _ in slots))]).log1p()
        beside = torch.cat([model.age_norm(age), model.count_norm(model.count(times))])
        return merged(model.out, x[0], beside).squeeze()

    check(model, batch_of(model, 2), score)


@torch.no_grad()
def test_dygformer_is_a_transformer_over_patches_of_both_histories():
    model = made_model("dygformer", node_x_dim=NODE_DIM, patch=3)
    batch, c = third_batch(model), model.config

    def history(node, t):
        itself = (node, model.time(torch.tensor(0.0)), torch.zeros(X_DIM))
        slots = met(node, t, c.length - 1)
        return [itself, *((w, model.time(seconds(s, t)), EVENTS.x[e]) for w, s, e in slots)]

    def encoded(count):
        return model.shared.encoded(model.shared.hidden(torch.tensor([float(count)])).relu())

    def patches(own, other):
        counts = [Counter(w for w, _, _ in each) for each in (own, other)]
        shared = [encoded(counts[0][w]) + encoded(counts[1][w]) for w, _, _ in own]
        shared += [2 * encoded(0)] * (c.length - len(own))
        columns = {
            model.channels["node"]: [NODE_X[w] for w, _, _ in own],
            model.channels["edge"]: [x for _, _, x in own],
            model.channels["time"]: [dt for _, dt, _ in own],
            model.shared.proj: shared,
        }
        num = c.length // c.patch
        return torch.cat(
            [proj(padded(rows, c.length).view(num, -1)) for proj, rows in columns.items()], dim=1
        )

    def score(u, v, t):
        src, dst = history(u, t), history(v, t)
        x = torch.cat([patches(src, dst), patches(dst, src)]).unsqueeze(0)
        for layer in model.transformer:
            x = layer(x)
        left, right = (model.out(half.mean(0)) for half in x[0].chunk(2))
        return merged(model.decoder, left, right).squeeze()

    check(model, batch, score)


@torch.no_grad()
def test_tpnet_uses_walk_features_of_both_nodes():
    model = made_model("tpnet", node_x_dim=NODE_DIM, walk_decay=1e-3)
    batch, k = third_batch(model), model.config.neighbors
    walks, place = model.walks.read(model.state, batch), batch.nodes.tolist().index

    @cache
    def near(a, b, t):
        rows = torch.tensor([place(a)]), torch.tensor([place(b)])
        gram = walks.features(*rows, torch.tensor([t]), torch.tensor([True]))
        return merged(model.walk_map, gram)[0]

    def embedded(node, other, t):
        own, to_other = [], []
        for w, s, e in met(node, t, k):
            time = model.own_proj.time(seconds(s, t))
            own.append(torch.cat([NODE_X[w], EVENTS.x[e], time, near(w, node, t)]))
            to_other.append(near(w, other, t))
        parts = [
            proj(padded(rows, k) if rows else torch.zeros(k, proj.in_features))
            for proj, rows in ((model.own_proj.proj, own), (model.other_proj, to_other))
        ]
        x = model.token_proj((parts[0] + parts[1]).relu()).unsqueeze(0)
        for mixer in model.mixers:
            x = mixer(x)
        return x[0].mean(0)

    def score(u, v, t):
        both = torch.cat([embedded(u, v, t), embedded(v, u, t)])
        return merged(model.decoder, both, near(u, v, t)).squeeze()

    check(model, batch, score)

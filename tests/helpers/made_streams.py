"""Generated streams and files of them, with and without labels."""

from dataclasses import replace

import torch

from tgflow import TGAT, TGN, EventBatch, SmoothedCounts
from tgflow.models import TGATConfig, TGNConfig

NUM_USERS = 12
NUM_ITEMS = 20


def made_events(size, *, x_dim=2, noise=0.2, seed=0):
    """Events of users who mostly return to their own item, with ties in time.

    Sources are nodes 0 to 11, destinations 12 to 31.
    """
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(NUM_USERS, (size,), generator=g)
    strays = torch.rand(size, generator=g) < noise
    item = torch.where(
        strays, torch.randint(NUM_ITEMS, (size,), generator=g), (src * 7) % NUM_ITEMS
    )
    t = 1_600_000_000 + torch.randint(0, 60, (size,), generator=g).cumsum(0)
    x = torch.randn(size, x_dim, generator=g) if x_dim else None
    return EventBatch(src, NUM_USERS + item, t, x)


def pieces(events, *sizes):
    """Cut `events` into batches of the given sizes, over and over."""
    start = 0
    while start < len(events):
        for size in sizes:
            yield events[start : start + size]
            start += size


def seeded(make, seed=0):
    """Return what `make` draws from a seed, without a change to torch's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def small_tgn(seed=0, **changes):
    """A TGN that trains in milliseconds, with dropout."""
    widths = {"memory_dim": 8, "time_dim": 4, "embedding_dim": 8, "neighbors": 3}
    settings = {"edge_x_dim": 2, "dropout": 0.1, **widths}
    settings |= {"pair_features": (), **changes}
    return seeded(lambda: TGN(TGNConfig(**settings)), seed)


def small_tgat(seed=0, **changes):
    """A TGAT of two hops that trains in milliseconds, with dropout and uniform neighbors."""
    widths = {"edge_x_dim": 2, "time_dim": 4, "embedding_dim": 8, "neighbors": 3}
    settings = {**widths, "pair_features": (), **changes}
    return seeded(lambda: TGAT(TGATConfig(**settings)), seed)


def small_counts(seed=0, **changes):
    """The count model, with the same parameters at every call."""
    return seeded(lambda: SmoothedCounts(**changes), seed)


def with_labels(events, label):
    """Return events with these labels."""
    return replace(events, label=label)


def taking_turns(size, num_classes=3):
    """Events whose labels alternate per pair: the last label is always wrong."""
    events, met = made_events(size), dict[tuple[int, int], int]()
    labels = []
    for pair in zip(events.src.tolist(), events.dst.tolist(), strict=True):
        met[pair] = met.get(pair, 0) + 1
        labels.append((sum(pair) + met[pair]) % num_classes)
    return with_labels(events, torch.tensor(labels))


def by_feature(size):
    """Events whose label is the sign of the first feature: -1 or 1."""
    events = made_events(size)
    assert events.x is not None
    return with_labels(events, 2 * (events.x[:, 0] > 1).long() - 1)


def tied(size, num_classes=4, seed=0):
    """Few nodes, many ties, labels at random, of which small ones are frequent."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(4, (2, size), generator=generator)
    t = torch.randint(0, 3, (size,), generator=generator).cumsum(0)
    label = torch.rand(size, generator=generator).pow(2).mul(num_classes).long() * 7
    return EventBatch(src, dst, t, label=label)


def rows_of(events):
    """Return source, destination, time and label of each event."""
    assert events.label is not None
    columns = events.src, events.dst, events.t, events.label
    return list(zip(*(column.tolist() for column in columns), strict=True))


def codes_of(events, num_classes):
    """Return the class of each event by first occurrence, or by sign for two."""
    labels = [label for *_, label in rows_of(events)]
    if num_classes == 2:
        return [int(label > 0) for label in labels]
    order = list(dict.fromkeys(labels))
    return [order.index(label) for label in labels]

"""Labeled streams, and slow reference heuristics for labels."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from helpers.made_streams import made_events
from tgflow.graph.events import EventBatch


def with_labels(events: EventBatch, label: Tensor) -> EventBatch:
    """Return events with these labels."""
    return replace(events, label=label)


def taking_turns(size: int, num_classes: int = 3) -> EventBatch:
    """Events whose labels alternate per pair: the last label is always wrong."""
    events, met = made_events(size), dict[tuple[int, int], int]()
    labels = []
    for pair in zip(events.src.tolist(), events.dst.tolist(), strict=True):
        met[pair] = met.get(pair, 0) + 1
        labels.append((sum(pair) + met[pair]) % num_classes)
    return with_labels(events, torch.tensor(labels))


def by_feature(size: int) -> EventBatch:
    """Events whose label is the sign of the first feature: -1 or 1."""
    events = made_events(size)
    assert events.x is not None
    return with_labels(events, 2 * (events.x[:, 0] > 1).long() - 1)


def tied(size: int, num_classes: int = 4, seed: int = 0) -> EventBatch:
    """Few nodes, many ties, labels at random, of which small ones are frequent."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(4, (2, size), generator=generator)
    t = torch.randint(0, 3, (size,), generator=generator).cumsum(0)
    label = torch.rand(size, generator=generator).pow(2).mul(num_classes).long() * 7
    return EventBatch(src, dst, t, label=label)


def rows_of(events: EventBatch) -> list[tuple[int, int, int, int]]:
    """Return source, destination, time and label of each event."""
    assert events.label is not None
    columns = events.src, events.dst, events.t, events.label
    return list(zip(*(column.tolist() for column in columns), strict=True))


def codes_of(events: EventBatch, num_classes: int) -> list[int]:
    """Return the class of each event by first occurrence, or by sign for two."""
    labels = [label for *_, label in rows_of(events)]
    if num_classes == 2:
        return [int(label > 0) for label in labels]
    order = list(dict.fromkeys(labels))
    return [order.index(label) for label in labels]

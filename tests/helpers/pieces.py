"""Checkpoints with sealed sections, whose contents encode their step."""

import torch

from tgflow.checkpoint import Checkpoint

PIECE = 2


def checkpoint_of(step):
    """Return a checkpoint in which every second step seals a section."""
    events, pieces = torch.arange(step), step // PIECE
    return Checkpoint(
        {"model": {"w": torch.full((5,), float(step))}, "tail": {"t": events[pieces * PIECE :]}},
        {"step": step},
        {
            f"events-{i}": lambda i=i: {"t": events[i * PIECE : (i + 1) * PIECE].clone()}
            for i in range(pieces)
        },
    )


def check_is_whole(loaded, step):
    """Raise unless `loaded` is all that `checkpoint_of(step)` holds."""
    assert loaded.meta == {"step": step}
    assert loaded.sections["model"]["w"].tolist() == [step] * 5
    pieces = [loaded.sealed[f"events-{i}"]()["t"] for i in range(step // PIECE)]
    assert torch.cat([*pieces, loaded.sections["tail"]["t"]]).tolist() == list(range(step))

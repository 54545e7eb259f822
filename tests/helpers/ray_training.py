"""A training in workers of Ray Train, which import this module."""

from __future__ import annotations

from pathlib import Path

import torch

import tgflow as tg
from helpers.made_models import X_DIM, made_events, made_model
from tgflow.ranks.control import checksum


def train_with_ray(config: dict[str, str]) -> None:
    """Learn as one of the workers; write the checksum of the parameters to the folder `to`."""
    torch.set_num_threads(1)
    peers = tg.join({"seed": 1}, timeout=120.0)
    settings = tg.ContinualConfig(batch_size=16, slices=2)
    graph = tg.TemporalGraph("undirected", X_DIM)
    trainer = tg.ContinualTrainer(made_model("tgn"), graph, settings, peers=peers)
    trainer.run([made_events(64)])
    digest = int(checksum(dict(trainer.model.named_parameters())).item())
    Path(config["to"], f"rank-{peers.rank}-of-{peers.world}").write_text(str(digest))
    peers.close()

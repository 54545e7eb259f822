"""Ranks know a run from rank 0 alone, and see the same directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from helpers.worlds import in_world
from tgflow.config import load_config
from tgflow.distributed.feed import LeaderFailed
from tgflow.peers import Alone, PeerLost
from tgflow.runtime.briefing import Briefing, Lead, NotShared, hear
from tgflow.runtime.directory import ResumeOptions, RunDirectory

FLAGS = {"stream.path": "nowhere.csv", "model.name": "tgat", "model.settings": {"dim": 8}}


def briefing_of(path):
    config = load_config(flags=FLAGS | {"run.out": str(path)})
    directory = RunDirectory.find(config, "run", ResumeOptions())
    with directory:
        return Briefing.of(directory, None, unit="ms", x_dim=3, node_x_dim=2, direction="bipartite")


def brief(peers, path):
    if peers.rank == 0:
        briefing = briefing_of(path)
        with Lead(peers) as lead:
            lead.brief(briefing)
        return
    found = hear(peers)
    directory = found.directory()
    assert directory.config.model.name == "tgat"
    assert directory.config.model.settings == {"dim": 8}
    assert (directory.path, directory.resumed, directory.changed) == (path, False, [])
    assert (found.unit, found.x_dim, found.direction) == ("ms", 3, "bipartite")
    assert found.load_checkpoint() is None


def test_the_others_know_what_rank_0_knows(tmp_path):
    in_world(2, brief, tmp_path / "run")


def brief_or_hear(peers, path):
    if peers.rank == 0:
        Lead(peers).brief(briefing_of(path))
    else:
        hear(peers)


def refuse(code, path):
    raise OSError(code, os.strerror(code), str(path))


def not_written(peers, path):
    """The host of rank 1 has mounted the directory to read only."""
    if peers.rank == 1:
        Path.touch = lambda file: refuse(errno.EROFS, file)
    with pytest.raises(NotShared, match=r"rank 1 sees .*run and may not write there, where each"):
        brief_or_hear(peers, path)


def test_a_directory_that_a_rank_may_not_write_to_is_refused_by_all(tmp_path):
    in_world(2, not_written, tmp_path / "run")


def fail_before(peers):
    if peers.rank == 0:
        with pytest.raises(FileNotFoundError), Lead(peers):
            raise FileNotFoundError("no stream")
        return
    with pytest.raises(LeaderFailed, match="no stream") as error:
        hear(peers)
    assert "FileNotFoundError" in error.value.kinds


def test_why_rank_0_cannot_start_is_said_to_all():
    in_world(2, fail_before)


class Left(Alone):
    """A rank 0 whose others are gone."""

    world = 2

    def broadcast(self, tensor, *, kind, group="train"):
        raise PeerLost("rank 1 is gone")


def test_that_others_are_gone_does_not_hide_why_rank_0_cannot_start():
    with pytest.raises(FileNotFoundError, match="no stream"), Lead(Left()):
        raise FileNotFoundError("no stream")

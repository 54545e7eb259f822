"""Ranks on the command line: joining, following rank 0, and validation of settings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from tgflow.base.peers import PeerLost, Peers
from tgflow.cli import inputs as assemble
from tgflow.cli.errors import exit_code, explain, mark_reported, say
from tgflow.ranks.broadcast import LeaderFailed
from tgflow.ranks.launch import read_launch
from tgflow.run.build import open_follower
from tgflow.run.config import Config, flag_of, flat, in_flags
from tgflow.run.directory import ResumeOptions
from tgflow.run.followers import RANKS, receive_run
from tgflow.run.gpu import use_device
from tgflow.run.log import Level, RunLog
from tgflow.run.model_maker import make_model
from tgflow.run.stream import FlowControl

_ERRORS: tuple[Level, ...] = ("error",)
OF_A_HOST = {"run.out", "run.threads", "run.device", "ranks.interface"}
"""Settings that may differ between ranks: those of each host, and those sent by rank 0."""


@contextmanager
def join_ranks(config: Config, options: ResumeOptions, **flags: object) -> Iterator[Peers]:
    """Join the ranks that this process was started with, if any, and leave them on exit.

    If this rank fails, rank 0 reports the cause.
    """
    from tgflow.ranks.group import Ranks
    from tgflow.ranks.join import join

    launch = read_launch(os.environ)
    if launch is None or launch.world == 1:
        yield Peers()
        return
    c = config
    with report_as_rank(launch.rank) if launch.rank else nullcontext():
        device = use_device(c.run.device, c.model.precision)
        assemble.use_threads(c.run.threads, c.serve)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", RuntimeWarning)
            peers = join(
                _compared(flat(c), options, flags),
                interface=c.ranks.interface,
                device=device,
                timeout=c.ranks.timeout,
                strict=c.checkpoint.strict_resume,
            )
        assert isinstance(peers, Ranks)
        for warning in found:
            say(in_flags(str(warning.message)))
        try:
            yield peers
        except Exception as error:
            if not isinstance(error, PeerLost | LeaderFailed):  # raised by this rank
                peers.publish_error(explain(error))
            raise
        finally:
            peers.close()


def _compared(
    settings: Mapping[str, Any], options: ResumeOptions, flags: Mapping[str, object]
) -> dict[str, Any]:
    """Return the values that must be equal on all ranks, by flag."""
    found = {
        flag_of(key): value
        for key, value in settings.items()
        if key not in OF_A_HOST and not key.startswith("compare.")
    }
    asked = {"resume": options.resume, "allow-config-change": options.allow_change, **flags}
    return found | {f"--{name}": value for name, value in asked.items()}


def slice_per_rank(stated: Mapping[str, Any]) -> dict[str, int]:
    """Return the setting of one slice of each batch per rank, unless `stated` has a number."""
    launch, key = read_launch(os.environ), "learning.slices"
    return {} if launch is None or launch.world == 1 or key in stated else {key: launch.world}


def follow(peers: Peers, flow: FlowControl) -> None:
    """Learn the events of rank 0 until it ends, or until `flow` is stopped and rank 0 ends all."""
    with report_as_rank(peers.rank):
        run = receive_run(peers)
        c, run.flow = run.config, flow
        run.device = use_device(c.run.device, c.model.precision)
        assemble.use_threads(c.run.threads, c.serve)
        run.model = make_model(
            c.model, c.task, c.continual, run.x_dim, run.device, node_x_dim=run.node_x_dim
        )
        run.run_log = run_log = RunLog(
            run.path / RANKS / f"{peers.rank:03}.log",
            c.operate.log_format,
            speaker=f"rank {peers.rank}",
            says=_ERRORS,
        )
        try:
            result = open_follower(run).run()
        except Exception as error:
            text = explain(flow.error or error)  # by its own limit, if rank 0 ends for that
            run_log.error("end", text, exit_code=exit_code(error))
            mark_reported(error, text)
            raise
        run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
        run_log.close()


@contextmanager
def report_as_rank(rank: int) -> Iterator[None]:
    """Report an error as that of a rank."""
    try:
        yield
    except Exception as error:
        if "reported" not in vars(error):
            text = explain(error)
            say(text, f"rank {rank}")
            mark_reported(error, text)
        raise

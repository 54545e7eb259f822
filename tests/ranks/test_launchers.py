"""Runs on two hosts under each launcher, by the recipes of the guide on many machines."""

import importlib.util

import pytest

from helpers.live_runs import SMALL, same_run, write_events
from helpers.processes import environment
from helpers.rank_runs import train_with_ray
from tgflow.cli import main

PORT = 29521
EVENTS = 400
PATIENCE = 300


def pytorch_job(rank, address):
    """The variables of Kubeflow's training operator, one rank in each pod."""
    return {
        "RANK": rank,
        "WORLD_SIZE": 2,
        "PET_NODE_RANK": rank,
        "PET_NNODES": 2,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": PORT,
        "PYTHONUNBUFFERED": 1,
    }


def slurm(rank, address):
    return {
        "SLURM_PROCID": rank,
        "SLURM_NTASKS": 2,
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_LOCALID": 0,
        "SLURM_NODEID": rank,
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }


def open_mpi(rank, address):
    return {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": 2,
        "OMPI_COMM_WORLD_LOCAL_RANK": 0,
        "OMPI_COMM_WORLD_LOCAL_SIZE": 1,
    }


def mpich(rank, address):
    return {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": 0, "MPI_LOCALNRANKS": 1}


def static(rank, hosts):
    first = hosts[0].address
    return [
        *("-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1),
        *("--node-rank", rank, "--master-addr", first, "--master-port", PORT),
        *("-m", "tgflow"),
    ]


def c10d(rank, hosts):
    return [
        *("-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:{PORT}"),
        *("--rdzv-id", "job", "--rdzv-conf", f"is_host={1 - rank}"),
        *("--local-addr", hosts[rank].address, "-m", "tgflow"),
    ]


RECIPES = {
    "torchrun, static": (static, None),
    "torchrun, c10d": (c10d, None),
    "Slurm, one torchrun a node": (c10d, slurm),
    "Slurm, one rank a task": (None, slurm),
    "PyTorchJob": (None, pytorch_job),
    "Open MPI": (None, open_mpi),
    "MPICH": (None, mpich),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", RECIPES)
def test_run_on_two_hosts_matches_one_process_under_each_launcher(hosts, tmp_path, launcher):
    program, variables = RECIPES[launcher]
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("--stream", events, *SMALL)
    first = hosts[0].address
    master = {"MASTER_ADDR": first, "MASTER_PORT": PORT}
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["run", *map(str, options), "--slices", "2", "--out", str(one)]) == 0
    started = [
        host.start(
            [
                *(("-m", "tgflow") if program is None else program(rank, hosts)),
                *("run", *options, "--out", two, "--resume"),
                *("--set", f"ranks.interface={host.link}"),
            ],
            tmp_path / f"said-{rank}",
            {} if variables is None else variables(rank, first) | master,
        )
        for rank, host in enumerate(hosts)
    ]
    for rank, process in enumerate(started):
        assert process.wait(timeout=PATIENCE) == 0, (tmp_path / f"said-{rank}").read_text()
    same_run(one, two)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_train_hosts_ranks_with_the_bits_of_one_process(tmp_path, monkeypatch):
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")  # a busy machine takes some
    variables = {"env_vars": {"PYTHONPATH": environment()["PYTHONPATH"]}}
    ray.init(num_cpus=3, include_dashboard=False, runtime_env=variables)
    try:
        for world in (1, 2):
            TorchTrainer(
                train_with_ray,
                train_loop_config={"to": str(tmp_path)},
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ScalingConfig(num_workers=world),
                run_config=RunConfig(storage_path=str(tmp_path), name=f"ranks-{world}"),
            ).fit()
    finally:
        ray.shutdown()
    digests = {path.name: path.read_text() for path in tmp_path.glob("rank-*")}
    assert sorted(digests) == ["rank-0-of-1", "rank-0-of-2", "rank-1-of-2"]
    assert len({*digests.values()}) == 1

"""Rank and world of a process from the environment variables of its launcher."""

import sys

import pytest

from tgflow.base.peers import WorldError
from tgflow.ranks.launch import choose_interface, read_launch
from tgflow.ranks.supervise import supervise

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"RANK": None}, "RANK must be a whole number, got None; start ranks with torchrun"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number, got 'many'"),
        ({"RANK": "8"}, "rank must be from 0 to 7, got 8"),
        ({"WORLD_SIZE": "65"}, "a world has 1 to 64 ranks, got 65"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE is 8 but MASTER_ADDR is not set, .*torchrun"),
        ({"MASTER_PORT": ""}, "MASTER_PORT must be a whole number, got ''"),
    ],
)
def test_invalid_environment_variables_are_refused(changes, text):
    environ = {k: v for k, v in (TORCHRUN | changes).items() if v is not None}
    with pytest.raises(WorldError, match=text):
        read_launch(environ)


ADDRESS = {"MASTER_ADDR": "h1", "MASTER_PORT": "29400"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2),2",
}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, (5, 8, 2, 4)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4, 0, 1)),  # a PyTorchJob
        (OPEN_MPI, (3, 4, 1, 2)),
        (MPICH, (3, 4, 1, 2)),
        (SLURM, (3, 4, 0, 2)),
        (SLURM | TORCHRUN, (5, 8, 2, 4)),  # torchrun within srun
        (SLURM | OPEN_MPI, (3, 4, 1, 2)),
        (BATCH_SCRIPT, None),
        ({}, None),
    ],
)
def test_ranks_of_each_launcher_are_on_one_host_only_if_it_says_so(environ, expected):
    launch = read_launch(environ | ADDRESS)
    if expected is None:
        assert launch is None
        return
    rank, world, local_rank, local_world = expected
    assert (launch.rank, launch.world) == (rank, world)
    assert (launch.local_rank, launch.local_world) == (local_rank, local_world)
    assert launch.address == ("h1", 29400)
    assert not launch.one_host


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (SLURM, "MASTER_ADDR=.*hostnames.* MASTER_PORT=29400 srun -n 4 tgflow run"),
        (OPEN_MPI, "mpirun -x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29400 tgflow run"),
        (MPICH, "mpirun -genv MASTER_ADDR HOST_OF_RANK_0 -genv MASTER_PORT 29400 tgflow run"),
    ],
)
def test_tasks_without_a_world_are_refused_with_the_line_to_type(environ, line):
    with pytest.raises(WorldError, match=f"4 processes would not find each other; {line}"):
        read_launch(environ)


def test_unknown_interface_is_refused_and_available_ones_are_listed():
    with pytest.raises(WorldError, match=r"interface 'eth77' is none .*; there are .*127\.0\.0\.1"):
        choose_interface("eth77", one_host=True)


def test_multiple_hosts_require_a_named_interface():
    with pytest.raises(WorldError, match=r"on several hosts: name .* interface='eth1'; there are"):
        choose_interface(None, one_host=False)


def test_several_ranks_are_refused_without_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    refused = pytest.raises(WorldError, match=r"several ranks need Linux, .* without --nproc")
    with refused:
        read_launch(TORCHRUN)
    with refused:
        supervise(list, 2, environ={})
    assert read_launch(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}).world == 1

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cordee.core.errors import UsageError
from cordee.core.world import World


def place(world: World) -> tuple[int, ...]:
    return world.rank, world.size, world.local_rank, world.local_size, world.node, world.nodes


def tf_config(kind: str, index: int, **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "a1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "job-17",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_NODELIST": "n[01-03,7]",
}


def test_nobody_says_anything() -> None:
    world = World.from_env({"HOME": "x"})
    assert place(world) == (0, 1, 0, 1, 0, 1)
    assert (world.source, world.master) == ("alone", None)
    assert world.host


def test_our_launcher_writes_what_its_workers_read() -> None:
    given = World(3, 6, 1, 2, 1, 3, source="cordee")
    env = given.to_env()
    assert World.from_env(env) == given
    assert env["CORDEE_RANK"] == "3"
    # Ours stands before all others: torchrun may have started the launcher.
    assert World.from_env({**TORCHRUN, **SLURM, **env}) == given


def test_torchrun() -> None:
    world = World.from_env(TORCHRUN)
    assert place(world) == (5, 8, 1, 4, 1, 2)
    assert (world.source, world.master) == ("torchrun", ("a1", 29500))


def test_torch_variables_without_the_local_ones_are_one_process_a_host() -> None:
    env = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    assert place(World.from_env(env)) == (5, 8, 0, 1, 5, 8)


def test_open_mpi_on_one_host_meets_on_loopback() -> None:
    world = World.from_env(OPEN_MPI)
    assert place(world) == (3, 4, 3, 4, 0, 1)
    assert world.source == "mpirun"
    assert world.master is not None and world.master[0] == "127.0.0.1"
    # All ranks of a job find the same port; those of another job another one.
    other = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert World.from_env(other).master == world.master
    assert World.from_env({**OPEN_MPI, "PMIX_NAMESPACE": "job-18"}).master != world.master


def test_torch_variables_by_hand_are_one_host_where_rank_0_is_on_loopback() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert place(World.from_env(env)) == (1, 3, 1, 3, 0, 1)
    hand = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    assert place(World.from_env(hand)) == (1, 3, 1, 3, 0, 1)


@pytest.mark.parametrize(
    ("one", "peer", "other"),
    [
        (TORCHRUN, {"RANK": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "a1.here"}, {"MASTER_PORT": "29501"}),
        (OPEN_MPI, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, {"PMIX_NAMESPACE": "job-18"}),
        (SLURM, {"SLURM_PROCID": "4", "SLURM_LOCALID": "0"}, {"SLURM_STEP_ID": "1"}),
        (
            tf_config("worker", 0, worker=["a:1", "a:2"]),
            tf_config("worker", 1, worker=["a:1", "a:2"]),
            tf_config("worker", 0, worker=["a:1", "a:3"]),
        ),
    ],
)
def test_a_run_is_called_alike_by_its_processes_and_by_no_other(
    one: dict[str, str], peer: dict[str, str], other: dict[str, str]
) -> None:
    run = World.from_env(one).run
    assert run and World.from_env({**one, **peer}).run == run != World.from_env({**one, **other}).run


def test_variables_of_open_mpi_set_by_hand_do_not_name_the_run() -> None:
    assert World.from_env({name: value for name, value in OPEN_MPI.items() if name != "PMIX_NAMESPACE"}).run == ""


def test_a_launcher_without_names_is_known_by_its_process() -> None:
    """Not by the wrapper between it and the process, which has the variables too."""
    code = "from cordee.core.world import World; print(World.from_env().run)"
    environment = {**os.environ, **HYDRA, "PMI_FD": "9", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
    for wrapper in ([], ["timeout", "60"]):
        words = [*wrapper, sys.executable, "-c", code]
        said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
        assert said.strip() == f"the launcher {os.getpid()}"


def test_mpich_over_hosts_needs_a_master() -> None:
    world = World.from_env({**HYDRA, "MASTER_ADDR": "::1", "MASTER_PORT": "1234"})
    assert place(world) == (3, 4, 1, 2, 1, 2)
    assert world.master == ("::1", 1234)
    with pytest.raises(UsageError, match=r"PMI_SIZE=4, but .*MASTER_ADDR"):
        World.from_env(HYDRA)


def test_slurm() -> None:
    world = World.from_env(SLURM)
    assert place(world) == (5, 7, 1, 2, 2, 4)
    assert world.source == "slurm"
    assert world.master is not None and world.master[0] == "n01" and 15000 <= world.master[1] < 30000
    assert World.from_env({**SLURM, "SLURM_JOB_ID": "4712"}).master != world.master
    assert World.from_env({**SLURM, "MASTER_ADDR": "b", "MASTER_PORT": "9"}).master == ("b", 9)
    last = {"SLURM_PROCID": "6", "SLURM_LOCALID": "0", "SLURM_NODEID": "3"}
    assert place(World.from_env({**SLURM, **last})) == (6, 7, 0, 1, 3, 4)


def test_slurm_counts_the_step_and_not_the_job() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}
    world = World.from_env({**SLURM, **step, "SLURM_PROCID": "1", "SLURM_NODEID": "0"})
    assert place(world) == (1, 2, 1, 2, 0, 1)
    assert world.master is not None and world.master[0] == "127.0.0.1"


def test_a_batch_script_without_srun_is_alone() -> None:
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "ENVIRONMENT": "BATCH"}
    assert World.from_env(script).source == "alone"
    assert World.from_env({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}).source == "alone"
    assert World.from_env({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).size == 4
    # srun also speaks PMI; Slurm's own variables know the hosts.
    assert World.from_env({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "7"}).source == "slurm"
    assert World.from_env({**script, **OPEN_MPI}).source == "mpirun"


def test_tf_config() -> None:
    cluster = {"chief": ["a:1"], "worker": ["a:2", "b:1", "b:2"], "evaluator": ["c:1"], "ps": ["d:1"]}
    world = World.from_env(tf_config("worker", 2, **cluster))
    assert place(world) == (3, 4, 1, 2, 1, 2)
    assert (world.source, world.host, world.master) == ("tf_config", "b", ("a", 1))
    assert place(World.from_env(tf_config("chief", 0, **cluster))) == (0, 4, 0, 2, 0, 2)
    assert World.from_env({"TF_CONFIG": "{}"}).source == "alone"


def test_the_order_of_the_launchers() -> None:
    tf = tf_config("worker", 0, worker=["a:1"])
    sources = []
    env = {**TORCHRUN, **OPEN_MPI, **SLURM, **tf}
    for gone in ("RANK WORLD_SIZE", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "TF_CONFIG"):
        sources.append(World.from_env(env).source)
        for name in gone.split():
            del env[name]
    assert [*sources, World.from_env(env).source] == ["torchrun", "mpirun", "slurm", "tf_config", "alone"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({**TORCHRUN, "RANK": "8"}, "RANK=8 with WORLD_SIZE=8; expected 0 to 7"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK=-1"),
        ({**TORCHRUN, "RANK": "two"}, "RANK='two' is not a whole number"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK=4 with LOCAL_WORLD_SIZE=4"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 is more than all 8"),
        ({**TORCHRUN, "GROUP_RANK": "2"}, "GROUP_RANK=2 with GROUP_WORLD_SIZE=2"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT.*'a1:70000'"),
        ({"RANK": "0"}, "RANK=0 is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set but RANK is not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE=2, but .*MASTER_ADDR"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0; expected at least 1"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "LOCAL_RANK=0 is set but LOCAL_WORLD_SIZE is not"),
        ({**SLURM, "SLURM_PROCID": "7"}, "SLURM_PROCID=7 with SLURM_NTASKS=7"),
        ({**SLURM, "SLURM_NODEID": "4"}, "names 4 node.s., but SLURM_NODEID=4"),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "2,two"}, "SLURM_TASKS_PER_NODE=2,two"),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "2(x2)"}, "names 2 node"),
        ({**SLURM, "SLURM_JOB_NODELIST": "n[01-"}, "host list"),
        ({"TF_CONFIG": "{'cluster'"}, "TF_CONFIG=.*not understood"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG=.*not understood"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "TF_CONFIG=.*not understood"),
        (tf_config("worker", 1, worker=["a:1"]), "no address for its own task worker 1"),
        (tf_config("worker", 0, worker=["a"]), "TF_CONFIG holds the address 'a'; expected host:port"),
        (tf_config("ps", 0, worker=["a:1"], ps=["b:1"]), "the task ps; start workers only"),
        (tf_config("evaluator", 0, worker=["a:1"], evaluator=["b:1"]), "the task evaluator; start workers only"),
    ],
)
def test_what_does_not_belong_together_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        World.from_env(env)


def test_a_place_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="rank=2 with size=2"):
        World(rank=2, size=2)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("m1", "m1"),
        ("m1,n[1-2]", "m1"),
        ("n[01-03,7],m1", "n01"),
        ("n[9-11]", "n9"),
        ("r[1-2]n[08-09]-ib,x", "r1n08-ib"),
    ],
)
def test_the_first_host_of_a_list(text: str, host: str) -> None:
    master = World.from_env({**SLURM, "SLURM_JOB_NODELIST": text}).master
    assert master is not None and master[0] == host


@pytest.mark.parametrize("text", ["n[1", "n]1", "n[a-b]", "n[]"])
def test_host_lists_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="host list"):
        World.from_env({**SLURM, "SLURM_JOB_NODELIST": text})

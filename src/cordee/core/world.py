"""Who am I: the one place that reads rank variables, of any launcher."""

from __future__ import annotations

import json
import os
import re
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from cordee.core.errors import UsageError

Env = Mapping[str, str]
Address = tuple[str, int]


class _Names(NamedTuple):
    """The variables of a launcher, each place before its count; empty where it has none."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    node: str = ""
    nodes: str = ""


_CORDEE = _Names(*(f"CORDEE_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE", "NODES")))
_TORCHRUN = _Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
"""Also of another launcher that sets what torch calls `env://`."""
_MPIRUN = (
    _Names(*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Of Open MPI; of MPICH and Intel MPI."""


@dataclass(frozen=True)
class World:
    """One process's place among the processes of a run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Place among the processes of the same host: which core or GPU is mine."""
    local_size: int = 1
    node: int = 0
    nodes: int = 1
    host: str = field(default_factory=socket.gethostname)
    source: str = "alone"
    """Whose variables said so: cordee, torchrun, mpirun, slurm, tf_config, or alone."""
    master: Address | None = None
    """Where rank 0 listens, when another launcher started this process."""
    run: str = ""
    """What the variables of another launcher call the run, the same for all its processes; empty if they do not say."""

    def __post_init__(self) -> None:
        """Refuse places that cannot be."""
        _check(_Names._fields, [getattr(self, name) for name in _Names._fields])

    @property
    def is_foreign(self) -> bool:
        """Whether another launcher started this process."""
        return self.source not in ("alone", "cordee")

    @classmethod
    def from_env(cls, env: Env | None = None) -> World:
        """My place by the first launcher whose variables are there; alone when there are none."""
        env = os.environ if env is None else env
        if _both(env, _CORDEE.rank, _CORDEE.size):
            return _placed(env, _CORDEE, source="cordee")
        if _both(env, _TORCHRUN.rank, _TORCHRUN.size):
            job = [env[name] for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT") if name in env]
            return _foreign(env, _TORCHRUN, "torchrun", ", ".join(job))
        for names in _MPIRUN:
            # srun may set PMI_* too, without the local ones: then Slurm's own variables know more.
            if names.rank in env and names.size in env and ("SLURM_PROCID" not in env or names.local_rank in env):
                return _foreign(env, names, "mpirun", _mpi_job(env, names.rank))
        return _from_slurm(env) or _from_tf_config(env) or cls()

    def to_env(self) -> dict[str, str]:
        """The variables that `from_env` reads as this place, for a process that our launcher starts."""
        return {variable: str(getattr(self, name)) for name, variable in _CORDEE._asdict().items()}


def _mpi_job(env: Env, variable: str) -> str:
    """What a launcher of MPI calls the run; empty if it does not say."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_PORT")
    job = next((env[name] for name in names if name in env), "")
    if job or "PMI_FD" not in env:
        return job
    # MPICH's launcher gives its runs no name. It is the nearest ancestor without our variables: not a shell between.
    pid = os.getppid()
    try:
        while f"{variable}=".encode() in Path(f"/proc/{pid}/environ").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # another user's: it was not started with our variables
        pass
    return f"the launcher {pid}"


def _from_slurm(env: Env) -> World | None:
    """Slurm's `srun`."""
    size = _first(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    # A batch script has rank 0 of all its tasks too, but is one process until it calls srun.
    started_by_srun = "SLURM_STEP_ID" in env or "SLURM_STEPID" in env
    alone = env.get("ENVIRONMENT") == "BATCH" or _number(env, size, 1, least=1) == 1
    if "SLURM_PROCID" not in env or (alone and not started_by_srun):
        return None
    nodes = _first(env, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    names = _Names("SLURM_PROCID", size, "SLURM_LOCALID", "tasks on this node", "SLURM_NODEID", nodes)
    tasks = {"SLURM_LOCALID": "0", **env, names.local_size: str(_slurm_tasks(env, names))}
    listed = env.get(_first(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"), "")
    # Of `n[01-03,7],m1` the first: n01.
    first_host = re.sub(r"\[(\d+)[^\]]*\]", r"\1", listed).partition(",")[0]
    if set(first_host) & set("[]"):
        raise UsageError(f"host list {listed!r} is not understood; expected Slurm's form, such as n[01-03,7],m1.")
    job = f"job {env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
    return _foreign(tasks, names, "slurm", job, first_host)


def _slurm_tasks(env: Env, names: _Names) -> int:
    """Tasks on my node, by `2(x3),1`: two on each of three nodes, one on the fourth."""
    name = _first(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    node, nodes = _number(env, names.node, 0), _number(env, names.nodes, 1, least=1)
    if name not in env:
        return -(-_number(env, names.size, 1) // nodes)
    counts: list[int] = []
    for item in env[name].split(","):
        matched = re.fullmatch(r"([1-9]\d*)(?:\(x(\d+)\))?", item)
        if matched is None:
            raise UsageError(f"{name}={env[name]} is not understood; expected Slurm's form, such as 2(x3),1.")
        counts += [int(matched.group(1))] * int(matched.group(2) or 1)
    if node >= len(counts):
        raise UsageError(f"{name}={env[name]} names {len(counts)} node(s), but {names.node}={node}.")
    return counts[node]


def _from_tf_config(env: Env) -> World | None:
    """The cluster description that TensorFlow's launchers set; chief and workers are the ranks, in this order."""
    text = env.get("TF_CONFIG", "{}")
    try:
        config = json.loads(text)
        cluster = {str(kind): [str(one) for one in addresses] for kind, addresses in config.get("cluster", {}).items()}
        kind, index = (str(config["task"]["type"]), int(config["task"]["index"])) if cluster else ("", 0)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(
            f"TF_CONFIG={text} is not understood; expected JSON such as "
            '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}.'
        ) from None
    if not cluster:
        return None
    if kind in ("ps", "evaluator"):
        raise UsageError(
            f"TF_CONFIG gives this process the task {kind}; start workers only: there are no parameter servers, "
            "and workers evaluate by themselves."
        )
    ranks = [(one, place) for one in ("chief", "master", "worker") for place in range(len(cluster.get(one, [])))]
    if (kind, index) not in ranks:
        raise UsageError(
            f"TF_CONFIG={text} has no address for its own task {kind} {index}; expected it in its cluster."
        )
    addresses = [_address("TF_CONFIG", cluster[one][place]) for one, place in ranks]
    rank = ranks.index((kind, index))
    hosts = [host for host, _ in addresses]
    names = list(dict.fromkeys(hosts))
    host = hosts[rank]
    return World(
        rank,
        len(ranks),
        local_rank=hosts[:rank].count(host),
        local_size=hosts.count(host),
        node=names.index(host),
        nodes=len(names),
        host=host,
        source="tf_config",
        master=addresses[0],
        run=", ".join(f"{one}:{port}" for one, port in addresses),
    )


def _foreign(env: Env, names: _Names, source: str, job: str, first_host: str = "") -> World:
    """My place by another launcher's variables, and where rank 0 is; `job` is that launcher's own word for the run."""
    master = None
    if _both(env, "MASTER_ADDR", "MASTER_PORT"):
        master = _address("MASTER_ADDR:MASTER_PORT", f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}")
    run = ", ".join([*([f"MASTER_PORT={master[1]}"] if master is not None else []), *filter(None, [job])])
    world = _placed(env, names, source=source, master=master, run=run)
    if master is not None or world.size == 1:
        return world
    host = "127.0.0.1" if world.nodes == 1 and source != "torchrun" else first_host
    if not host:
        raise UsageError(
            f"{names.size}={world.size}, but no variable says where rank 0 is; export MASTER_ADDR=<host of rank 0> and "
            "MASTER_PORT=<free port> to every process (mpirun -x)."
        )
    # A port that all processes of a job find without asking: below the range that kernels hand out by themselves.
    return replace(world, master=(host, 15000 + zlib.crc32(job.encode()) % 15000))


def _placed(env: Env, names: _Names, *, master: Address | None = None, **more: Any) -> World:
    """The world by these variables; what none of them says is read off ranks that fill one host after the other."""
    rank, size = _number(env, names.rank, 0), _number(env, names.size, 1, least=1)
    local_size = _number(env, names.local_size, 1, least=1) if _both(env, names.local_rank, names.local_size) else 1
    if local_size > size:
        raise UsageError(f"{names.local_size}={local_size} is more than all {size} processes of the run.")
    nodes = _number(env, names.nodes, -(-size // local_size), least=1)
    local_rank = _number(env, names.local_rank, rank % local_size)
    node = _number(env, names.node, min(rank // local_size, nodes - 1))
    on_loopback = master is not None and (master[0] in ("localhost", "::1") or master[0].startswith("127."))
    if on_loopback and names.local_size not in env and names.nodes not in env:
        local_rank, local_size, node, nodes = rank, size, 0, 1  # started by hand: all that reach rank 0 are here
    place = rank, size, local_rank, local_size, node, nodes
    _check(names, place)
    return World(*place, master=master, **more)


def _address(name: str, text: str) -> Address:
    """Host and port of `host:port`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{name} holds the address {text!r}; expected host:port.")
    return host.strip("[]"), int(port)


def _both(env: Env, first: str, second: str) -> bool:
    """Whether both variables are there; one alone is an error."""
    there = [name for name in (first, second) if name in env]
    if len(there) == 1:
        missing = second if there == [first] else first
        raise UsageError(f"{there[0]}={env[there[0]]} is set but {missing} is not; set both, or unset {there[0]}.")
    return len(there) == 2


def _first(env: Env, *names: str) -> str:
    """The first of these variables that is there, else the last."""
    return next((name for name in names if name in env), names[-1])


def _number(env: Env, name: str, default: int, *, least: int = 0) -> int:
    """The whole number in a variable."""
    try:
        value = int(env.get(name, default))
    except ValueError:
        raise UsageError(f"{name}={env[name]!r} is not a whole number; the launcher of this process sets it.") from None
    if value < least:
        raise UsageError(f"{name}={value}; expected at least {least}.")
    return value


def _check(names: Sequence[str], values: Sequence[int]) -> None:
    """Refuse a place that is not below its count: of ranks, of ranks on a host, of hosts."""
    for place, count in ((0, 1), (2, 3), (4, 5)):
        if not 0 <= values[place] < values[count]:
            raise UsageError(
                f"{names[place]}={values[place]} with {names[count]}={values[count]}; "
                f"expected 0 to {values[count] - 1}."
            )

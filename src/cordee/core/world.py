"""Who am I: the one place that reads rank variables, of any launcher."""

from __future__ import annotations

import json
import os
import re
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cordee.core.errors import UsageError
from cordee.core.hostlist import expand_hosts

Env = Mapping[str, str]
Address = tuple[str, int]


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
    hub: str | None = None
    """`host:port` of our launcher's channel, when our launcher started this process."""
    master: Address | None = None
    """Where rank 0 listens, when another launcher started this process."""
    run: str = ""
    """What the variables of another launcher call the run, the same for all its processes; empty if they do not say."""

    def __post_init__(self) -> None:
        """Refuse places that cannot be."""
        for index, count in (("rank", "size"), ("local_rank", "local_size"), ("node", "nodes")):
            _require_index(index, getattr(self, index), count, getattr(self, count))

    @property
    def is_foreign(self) -> bool:
        """Whether another launcher started this process."""
        return self.source not in ("alone", "cordee")

    @classmethod
    def from_env(cls, env: Env | None = None) -> World:
        """My place by the first launcher whose variables are there; alone when there are none."""
        env = os.environ if env is None else env
        found = (reader(env) for reader in _READERS)
        return next((world for world in found if world is not None), cls())

    def to_env(self) -> dict[str, str]:
        """The variables that `from_env` reads as this place, for a process that our launcher starts."""
        values = {name: str(getattr(self, one)) for one, name in _OURS.items()}
        if self.hub is not None:
            values["CORDEE_HUB"] = self.hub
        return values


_OURS = {
    "rank": "CORDEE_RANK",
    "size": "CORDEE_SIZE",
    "local_rank": "CORDEE_LOCAL_RANK",
    "local_size": "CORDEE_LOCAL_SIZE",
    "node": "CORDEE_NODE",
    "nodes": "CORDEE_NODES",
}


def _from_cordee(env: Env) -> World | None:
    """Our own launcher."""
    if not _both(env, "CORDEE_RANK", "CORDEE_SIZE"):
        return None
    rank, size = _index_of(env, "CORDEE_RANK", "CORDEE_SIZE")
    hub = env.get("CORDEE_HUB")
    if hub is not None:
        _address("CORDEE_HUB", hub)
    return _placed(env, rank, size, tuple(_OURS.values())[2:], source="cordee", hub=hub)


def _from_torchrun(env: Env) -> World | None:
    """`torchrun`, or another launcher that sets what torch calls `env://`."""
    if not _both(env, "RANK", "WORLD_SIZE"):
        return None
    rank, size = _index_of(env, "RANK", "WORLD_SIZE")
    master = _master(env)
    if master is None and size > 1:
        raise UsageError(
            f"WORLD_SIZE={size} but MASTER_ADDR and MASTER_PORT are not set; set them to rank 0's address."
        )
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    more = [env[name] for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT") if name in env]
    return _placed(env, rank, size, names, source="torchrun", master=master, run=_run_of(master, *more))


def _from_mpirun(env: Env) -> World | None:
    """Open MPI, or the launchers of MPICH and Intel MPI."""
    open_mpi = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    for names in (open_mpi, ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")):
        # srun may set PMI_* too, without the local ones: then Slurm's own variables know more.
        if names[0] in env and names[1] in env and ("SLURM_PROCID" not in env or names[2] in env):
            break
    else:
        return None
    rank, size = _index_of(env, names[0], names[1])
    master = _master(env)
    jobs = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_PORT")
    job = next((env[name] for name in jobs if name in env), "")
    if not job and "PMI_FD" in env:  # MPICH's launcher gives its runs no name
        job = f"the launcher {_launcher(names[0])}"
    run = _run_of(master, *filter(None, [job]))
    world = _placed(env, rank, size, (*names[2:], "", ""), source="mpirun", master=master, run=run)
    if world.master is not None or size == 1:
        return world
    if world.local_size < size:
        raise UsageError(
            f"{names[1]}={size} over several hosts, but no variable says where rank 0 is; "
            "export MASTER_ADDR=<host of rank 0> and MASTER_PORT=<free port> to every process (mpirun -x)."
        )
    return replace(world, master=("127.0.0.1", _port_for(job)))


def _from_slurm(env: Env) -> World | None:
    """Slurm's `srun`."""
    if "SLURM_PROCID" not in env:
        return None
    count_name = _first(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    # A batch script has rank 0 of all its tasks too, but is one process until it calls srun.
    started_by_srun = "SLURM_STEP_ID" in env or "SLURM_STEPID" in env
    if not started_by_srun and (env.get("ENVIRONMENT") == "BATCH" or _count(env, count_name, 1) == 1):
        return None
    rank, size = _index_of(env, "SLURM_PROCID", count_name)
    nodes_name = _first(env, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    nodes = _count(env, nodes_name, 1)
    node = _index(env, "SLURM_NODEID", 0, nodes_name, nodes)
    local_size = _slurm_local_size(env, node, -(-size // nodes))
    local_rank = _index(env, "SLURM_LOCALID", 0, "tasks on this node", local_size)
    master = _master(env) or (_slurm_master(env, nodes) if size > 1 else None)
    step = f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
    run = _run_of(_master(env), f"job {step}")
    return World(rank, size, local_rank, local_size, node, nodes, source="slurm", master=master, run=run)


def _slurm_master(env: Env, nodes: int) -> Address:
    """The first host of the step, and a port by the number of job and step."""
    port = _port_for(f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}")
    if nodes == 1:
        return "127.0.0.1", port
    name = _first(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    if name not in env:
        raise UsageError(f"{nodes} Slurm nodes but no SLURM_JOB_NODELIST; set MASTER_ADDR and MASTER_PORT to rank 0's.")
    return expand_hosts(env[name])[0], port


def _slurm_local_size(env: Env, node: int, default: int) -> int:
    """Tasks on my node by `2(x3),1`: two on each of three nodes, one on the fourth."""
    name = _first(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    if name not in env:
        return default
    counts: list[int] = []
    for item in env[name].split(","):
        matched = re.fullmatch(r"([1-9]\d*)(?:\(x(\d+)\))?", item)
        if matched is None:
            raise UsageError(f"{name}={env[name]} is not understood; expected Slurm's form, such as 2(x3),1.")
        counts += [int(matched.group(1))] * int(matched.group(2) or 1)
    if node >= len(counts):
        raise UsageError(f"{name}={env[name]} names {len(counts)} node(s), but SLURM_NODEID={node}.")
    return counts[node]


def _from_tf_config(env: Env) -> World | None:
    """The cluster description that TensorFlow's launchers set; chief and workers are the ranks, in this order."""
    if "TF_CONFIG" not in env:
        return None
    text = env["TF_CONFIG"]
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
    return _tf_place(text, cluster, kind, index)


def _tf_place(text: str, cluster: dict[str, list[str]], kind: str, index: int) -> World:
    """My place in TensorFlow's cluster."""
    if kind == "ps":
        raise UsageError(
            "TF_CONFIG makes this task a parameter server (ps); server plans come later: start workers only."
        )
    if kind == "evaluator":
        raise UsageError(
            "TF_CONFIG makes this task an evaluator; the workers evaluate by themselves: start workers only."
        )
    training = ("chief", "master", "worker")
    if kind not in training or not 0 <= index < len(cluster.get(kind, [])):
        raise UsageError(
            f"TF_CONFIG={text} has no address for its own task {kind} {index}; expected it in its cluster."
        )
    ranks = [(one, place) for one in training for place in range(len(cluster.get(one, [])))]
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


_READERS: tuple[Callable[[Env], World | None], ...] = (
    _from_cordee,
    _from_torchrun,
    _from_mpirun,
    _from_slurm,
    _from_tf_config,
)


def _placed(env: Env, rank: int, size: int, names: tuple[str, ...], **more: Any) -> World:
    """The world at this rank; what no variable says is read off ranks that fill one host after the other."""
    local_rank_name, local_size_name, node_name, nodes_name = names
    local_size = _count(env, local_size_name, 1) if _both(env, local_rank_name, local_size_name) else 1
    if local_size > size:
        raise UsageError(f"{local_size_name}={local_size} is more than all {size} processes of the run.")
    nodes = _count(env, nodes_name, -(-size // local_size))
    local_rank = _index(env, local_rank_name, rank % local_size, local_size_name, local_size)
    node = _index(env, node_name, min(rank // local_size, nodes - 1), nodes_name or "nodes", nodes)
    master = more.get("master")
    if master is not None and _is_loopback(master[0]) and local_size_name not in env and nodes_name not in env:
        local_rank, local_size, node, nodes = rank, size, 0, 1  # started by hand: all that reach rank 0 are here
    return World(rank, size, local_rank, local_size, node, nodes, **more)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _run_of(master: Address | None, *more: str) -> str:
    """What names a run: rank 0's port, if the variables say it, and the launcher's own words for the run."""
    return ", ".join([*([f"MASTER_PORT={master[1]}"] if master is not None else []), *more])


def _launcher(variable: str) -> str:
    """The nearest ancestor that was not given the variable: the launcher, not a shell or `timeout` between."""
    pid = os.getppid()
    try:
        while f"{variable}=".encode() in Path(f"/proc/{pid}/environ").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # another user's: it was not started with our variables
        pass
    return str(pid)


def _port_for(job: str) -> int:
    """A port that all processes of a job find without asking: below the range that kernels hand out by themselves."""
    return 15000 + zlib.crc32(job.encode()) % 15000


def _master(env: Env) -> Address | None:
    """Rank 0's address by torch's variables."""
    if not _both(env, "MASTER_ADDR", "MASTER_PORT"):
        return None
    return _address("MASTER_ADDR:MASTER_PORT", f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}")


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


def _whole(env: Env, name: str, default: int) -> int:
    """The whole number in a variable."""
    if name not in env:
        return default
    try:
        return int(env[name])
    except ValueError:
        raise UsageError(f"{name}={env[name]!r} is not a whole number; the launcher of this process sets it.") from None


def _count(env: Env, name: str, default: int) -> int:
    """A number of processes or hosts, at least 1."""
    value = _whole(env, name, default)
    if value < 1:
        raise UsageError(f"{name}={value}; expected at least 1.")
    return value


def _index(env: Env, name: str, default: int, count_name: str, count: int) -> int:
    """A place below `count`."""
    value = _whole(env, name, default)
    _require_index(name, value, count_name, count)
    return value


def _index_of(env: Env, name: str, count_name: str) -> tuple[int, int]:
    """A place and the count it is below."""
    count = _count(env, count_name, 1)
    return _index(env, name, 0, count_name, count), count


def _require_index(name: str, value: int, count_name: str, count: int) -> None:
    """Refuse a place that is not below its count."""
    if not 0 <= value < count:
        raise UsageError(f"{name}={value} with {count_name}={count}; expected 0 to {count - 1}.")

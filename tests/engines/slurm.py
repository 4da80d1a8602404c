"""A Slurm of its own for tests: Slurm's daemons on the hosts of a twin, with two nodes, and nothing left of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cordee.twin.cluster import Cluster
from cordee.twin.network import address_of
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin
from cordee.twin.twin import missing as missing_for_twin
from harness import DEADLINE_S, free_port, until

DAEMONS = (b"munged", b"slurmctld", b"slurmd", b": slurmscriptd")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "salloc", "scontrol", "scancel", "sinfo")
NODES, HEAD = ("a", "b"), "c"
"""The hosts that compute, and the one where jobs are submitted."""
CONF = """\
ClusterName=cordee
SlurmctldHost=c({head})
SlurmctldPort={port}
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=20
InactiveLimit=0
ReturnToService=2
NodeName=a NodeAddr={a} Port={one} CPUs=4 State=UNKNOWN
NodeName=b NodeAddr={b} Port={two} CPUs=4 State=UNKNOWN
PartitionName=low Nodes=a,b Default=YES MaxTime=1:00:00 PriorityTier=1 GraceTime=20
PartitionName=rude Nodes=a,b MaxTime=1:00:00 PriorityTier=1
PartitionName=high Nodes=a,b MaxTime=1:00:00 PriorityTier=2
"""
"""What a job that was put back into the queue waits for follows from `cred_expire`, two minutes by default."""
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing() -> str:
    """What a Slurm of our own needs and is not here."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    lacking = [f"{', '.join(absent)} missing (on Debian and Ubuntu: slurm-wlm, munge)"] if absent else []
    return "; ".join([*lacking, *missing_for_twin()])


@dataclass
class Slurm:
    """Daemons that are up."""

    twin: Twin
    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self) -> None:
        """Write the configuration, start the daemons, wait until both nodes are idle."""
        a, b, head = (address_of(self.twin.cluster, host) for host in (*NODES, HEAD))
        ports = dict(zip(("port", "one", "two"), (free_port(), free_port(), free_port()), strict=True))
        conf = CONF.format(folder=self.folder, a=a, b=b, head=head, **ports)
        (self.folder / "slurm.conf").write_text(conf)
        munge = self.folder / "munge"
        for path in (munge, self.folder / "state"):
            path.mkdir(mode=0o755)
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o400)
        named = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = (f"--{option}={munge / file}" for option, file in named.items())
        self._start("munged", HEAD, "munged", "--foreground", "--force", *files)
        until((munge / "socket").exists)
        self._start("slurmctld", HEAD, "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        until(self.is_idle)

    def is_idle(self) -> bool:
        """Whether both nodes are up, and nothing runs there."""
        with contextlib.suppress(subprocess.CalledProcessError):
            said = self.say("sinfo", "--noheader", "--Node", "--format=%N %T", "--partition=low")
            return said.split() == ["a", "idle", "b", "idle"]
        return False

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        self._start(node, node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """End everything on a node at once, as if it had lost its power."""
        self.twin.end_processes(node)
        self.daemons.pop(node).wait(DEADLINE_S)

    def processes(self, *hosts: str) -> list[int]:
        """What runs on these hosts besides daemons; by default on all."""
        found = []
        for pid in (pid for host in hosts or (*NODES, HEAD) for pid in self.twin.processes(host)):
            if words_of(pid)[0] not in (b"", *DAEMONS):
                found.append(pid)
        return found

    def run(self, *words: str | Path, host: str = HEAD) -> subprocess.CompletedProcess[str]:
        """A command on a host."""
        return subprocess.run(
            self.twin.command(host, [str(word) for word in words]),
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            check=False,
            env=self._environment,
            cwd=self.folder,
        )

    def say(self, *words: str) -> str:
        """What a command of Slurm prints."""
        done = self.run(*words)
        done.check_returncode()
        return done.stdout

    def show(self, job: str) -> Mapping[str, str]:
        """What Slurm knows of a job."""
        words = self.say("scontrol", "show", "job", "-o", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def submit(self, *words: str | Path) -> str:
        """`cordee train`; the number of the job."""
        done = self.run("cordee", "train", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[1]

    def await_state(self, job: str, state: str) -> None:
        """Until a job has ended, which must be in this way. It may be PREEMPTED for a moment, and others more."""
        found = ""

        def look() -> bool:
            nonlocal found
            found = self.show(job)["JobState"]
            return found in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

        until(look, 2 * DEADLINE_S)
        assert found == state, self.show(job)

    @property
    def _environment(self) -> dict[str, str]:
        binaries = Path(sys.executable).parent
        more = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{binaries}:{PATH}"}
        return {**os.environ, **more}

    def _start(self, name: str, host: str, *words: str) -> None:
        self.daemons[name] = subprocess.Popen(
            self.twin.command(host, words),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def words_of(pid: int) -> list[bytes]:
    """The command of a process; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return [b""]


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """A cluster for as long as this lasts."""
    twin = Twin.up(Cluster.parse("3"), Registry())
    made = Slurm(twin, folder)
    try:
        made.begin()
        yield made
    finally:
        twin.down()
        for daemon in made.daemons.values():
            daemon.wait(DEADLINE_S)

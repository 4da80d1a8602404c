"""Run as a process of its own: become a process of an emulated host, then the command that is to run there.

`python -I enter.py NAMESPACE HOSTNAME HOSTS_FILE GROUP [--tied=PARENT] -- COMMAND ...`. Only the standard
library: it runs before everything that a host does, and must not cost what importing PyTorch costs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

NEW_NETWORK, NEW_MOUNTS, NEW_NAME = 0x40000000, 0x00020000, 0x04000000
"""From linux/sched.h; Python has os.setns and os.unshare since 3.12 only."""
MOUNT_BIND, MOUNT_REC, MOUNT_PRIVATE = 0x1000, 0x4000, 0x40000
PARENT_DEATH = 1
"""prctl's request for a signal when the parent ends."""
TIED = "--tied="
MARK = "CORDEE_TWIN_HOST"
RUN = "CORDEE_TWIN_RUN"
"""In the environment of what `cordee twin run` starts: whose it is."""


def mark_of(hosts: Path, hostname: str) -> str:
    """What the environment of a host that is no namespace holds, so that its processes are found."""
    return f"{MARK}={hosts.parent / hostname}"


def main(words: list[str]) -> None:
    """Enter, and run."""
    cut = words.index("--")
    (namespace, hostname, hosts, group), flags, command = words[:4], words[4:cut], words[cut + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if group:
            Path(group, "cgroup.procs").write_text(str(os.getpid()))
        if namespace:
            with open(namespace) as space:
                _must(libc.setns(space.fileno(), NEW_NETWORK), f"enter {namespace}")
    except OSError as error:
        sys.exit(f"host {hostname} of the twin is not there: {error}")
    if namespace:
        _must(libc.unshare(NEW_MOUNTS | NEW_NAME), "have a name of its own")
        _must(libc.sethostname(hostname.encode(), len(hostname)), "be given a name")
        _must(libc.mount(b"none", b"/", None, MOUNT_REC | MOUNT_PRIVATE, None), "keep mounts to itself")
        _must(libc.mount(hosts.encode(), b"/etc/hosts", None, MOUNT_BIND, None), "see its /etc/hosts")
    else:
        os.environ[MARK] = mark_of(Path(hosts), hostname).partition("=")[2]
        # Workers of a warm server would be neither marked nor in this host's group: in this folder none is found.
        os.environ["XDG_RUNTIME_DIR"] = str(Path(hosts).parent)
    for parent in (flag.removeprefix(TIED) for flag in flags):
        _must(libc.prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0), "be tied to its parent")
        if os.getppid() != int(parent):
            sys.exit("the twin has ended already")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)


def _must(outcome: int, what: str) -> None:
    if outcome != 0:
        sys.exit(f"a host of the twin could not {what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1:])

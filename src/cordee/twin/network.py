"""The network of a twin, as commands for ip and tc: hosts and a switch are network namespaces, joined by cables.

Nothing is made in the machine's own network: both ends of a cable are made inside namespaces. So twins do not meet,
all may use the same addresses, and what a killed one leaves behind has names that tell whose it is.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cordee.core.errors import UsageError
from cordee.twin.cluster import Cluster, Host
from cordee.twin.processes import number_of

PREFIX = "cordee-"
SUBNET = "10.213.77"
COMMAND_S = 20.0
NAMESPACES = Path("/run/netns")
"""Where ip keeps namespaces that have a name."""
_INSIDE = "eth0"
_LEAST_BURST, _BURST_S = 6_000, 0.005
"""A token bucket of 5 ms, and of some packets, reaches the nominal speed and does not let much more pass at once."""
_QUEUE_S, _QUEUE, _LONGEST_QUEUE_S = 0.05, 500_000, 1.0
"""What may wait: 50 ms, or on a slow link 500 kB, of which a sender uses about 150 (Linux holds it back before a queue
overflows, as before a network card), but not more than a second."""
_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
_STEADY = f"{{ echo cubic > {_CONTROL} || echo reno > {_CONTROL}; }} 2>/dev/null || true"
"""BBR, which some machines use by default, takes itself for slow behind a token bucket, and sends at 0.6 to 0.97 of its
speed. The usual way of TCP does not; where a namespace may not choose cubic, reno is always there."""

Command = tuple[str, ...]


class NetworkError(UsageError):
    """A command of ip or tc failed: this kernel, or this user, cannot do it."""


def switch_of(twin: str) -> str:
    """The namespace in which a twin's switch is."""
    return f"{PREFIX}{twin}"


def namespace_of(twin: str, host: str) -> str:
    """The namespace that is a host."""
    return f"{PREFIX}{twin}-{host}"


def address_of(cluster: Cluster, host: str) -> str:
    """A host's address."""
    return f"{SUBNET}.{cluster.names.index(host) + 1}"


def hosts_file(cluster: Cluster) -> str:
    """What /etc/hosts says inside: every host by its name."""
    lines = ["127.0.0.1 localhost", *(f"{address_of(cluster, name)} {name}" for name in cluster.names)]
    return "\n".join(lines) + "\n"


def commands_to_make(twin: str, cluster: Cluster) -> list[Command]:
    """The commands that make the network."""
    switch = switch_of(twin)
    commands: list[Command] = [
        ("ip", "netns", "add", switch),
        ("ip", "-n", switch, "link", "add", "name", "bridge", "type", "bridge"),
        ("ip", "-n", switch, "link", "set", "dev", "bridge", "up"),
    ]
    for host in cluster.hosts:
        space, port = namespace_of(twin, host.name), _port(host.name)
        cable = ("name", port, "type", "veth", "peer", "name", _INSIDE, "netns", space)
        address = f"{address_of(cluster, host.name)}/24"
        commands += [
            ("ip", "netns", "add", space),
            ("ip", "-n", switch, "link", "add", *cable),
            ("ip", "-n", switch, "link", "set", "dev", port, "master", "bridge", "up"),
            ("ip", "-n", space, "address", "add", address, "dev", _INSIDE),
            ("ip", "-n", space, "link", "set", "dev", "lo", "up"),
            ("ip", "-n", space, "link", "set", "dev", _INSIDE, "up"),
            ("ip", "netns", "exec", space, "sh", "-c", _STEADY),
        ]
        commands += commands_to_limit(twin, host) if host.link is not None else []
    return commands


def commands_to_limit(twin: str, host: Host) -> list[Command]:
    """The commands that give a host's link its speed, both ways; also while something is sent."""
    ends = ((namespace_of(twin, host.name), _INSIDE), (switch_of(twin), _port(host.name)))
    queue: Command = ("pfifo",)
    if host.link is not None:
        byte_s = host.link / 8
        burst = max(_LEAST_BURST, round(byte_s * _BURST_S))
        waiting = max(byte_s * _QUEUE_S, min(_QUEUE, byte_s * _LONGEST_QUEUE_S))
        queue = ("tbf", "rate", f"{host.link:.0f}bit", "burst", str(burst), "limit", str(burst + round(waiting)))
    return [("tc", "-n", space, "qdisc", "replace", "dev", device, "root", *queue) for space, device in ends]


def commands_to_plug(twin: str, host: str, state: Literal["up", "down"]) -> list[Command]:
    """The commands that pull a host's cable out of the switch (down), or put it back (up)."""
    return [("ip", "-n", switch_of(twin), "link", "set", "dev", _port(host), state)]


def commands_to_remove(twin: str, hosts: Sequence[str]) -> list[Command]:
    """The commands that remove it, the cables first: a namespace may live a little longer than its name."""
    switch = switch_of(twin)
    cables = [("ip", "-n", switch, "link", "delete", "dev", _port(host)) for host in hosts]
    spaces = [("ip", "netns", "delete", space) for space in (*(namespace_of(twin, host) for host in hosts), switch)]
    return [*cables, *spaces]


def namespaces(twin: str) -> dict[str, tuple[int, int]]:
    """The namespaces of a twin that are there, each with what the kernel knows it by."""
    numbers = {}
    for path in (NAMESPACES / switch_of(twin), *NAMESPACES.glob(namespace_of(twin, "*"))):
        with contextlib.suppress(OSError):
            numbers[path.name] = number_of(path)
    return numbers


def execute(commands: Sequence[Command], *, check: bool = True) -> list[str]:
    """Run them one after the other; without `check` failures are returned.

    They inherit the registry's lock: if we are killed, no other command sweeps before the current one has ended.
    """
    failures = []
    for command in commands:
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=True, close_fds=False)
            continue
        except OSError as error:
            why = f"{command[0]} could not be started: {error.strerror}"
        except subprocess.TimeoutExpired:
            why = f"`{' '.join(command)}` did not end within {COMMAND_S:.0f} s"
        except subprocess.CalledProcessError as error:
            why = f"`{' '.join(command)}` failed: {' '.join(error.stderr.split()) or error.returncode}"
        if check:
            raise NetworkError(why)
        failures.append(why)
    return failures


def _port(host: str) -> str:
    """The switch's end of a host's cable."""
    return f"to-{host}"

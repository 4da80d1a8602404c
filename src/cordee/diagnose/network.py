"""The doctor looks at the network: addresses, ports, what protects the connections, and what `cordee twin` needs."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path

import psutil

from cordee.core.errors import RendezvousError, SecurityError
from cordee.core.machine import listeners
from cordee.diagnose.check import Check
from cordee.diagnose.child import run_child
from cordee.group.token import default_token_file, read_token

TWIN_TRIAL_S = 15.0
TWIN_TRIAL = """ip link add cordee0 type veth peer name cordee1
tc qdisc add dev cordee0 root tbf rate 100mbit burst 64kb latency 50ms"""
"""Run inside a new network namespace, which ends with it: the host's network is not touched."""


def check_interfaces() -> Check:
    """The IPv4 addresses that this host can offer to others, of interfaces that are up: gloo binds to one of these."""
    states = psutil.net_if_stats()
    addresses = [
        f"{name} {one.address}"
        for name, several in psutil.net_if_addrs().items()
        for one in several
        if one.family == socket.AF_INET and not ipaddress.ip_address(one.address).is_loopback
        if name in states and states[name].isup
    ]
    if not addresses:
        return Check("interfaces", "ok", "no IPv4 address for other hosts; a run on one host stays on loopback")
    advice = "Between hosts gloo takes the address that leads to --rendezvous HOST."
    return Check("interfaces", "ok", f"addresses for other hosts: {', '.join(addresses)}", advice)


# ------------------------------------------------------------- ports


def check_port(number: int) -> Check:
    """Whether a run can listen at this port."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the coordinator does
            listener.bind(("0.0.0.0", number))
            listener.listen(1)
    except OSError as problem:
        return judge_port(number, problem)
    return Check("port", "ok", f"{number} is free")


def judge_port(number: int, problem: OSError) -> Check:
    """Why a run cannot listen at a port; if it is in use, by which processes, as far as this user may see them."""
    state, advice = (
        f"cannot be used: {problem.strerror}",
        "Choose another port; those below 1024 are reserved for root.",
    )
    if problem.errno == errno.EADDRINUSE:
        holders = []
        for pid in sorted(pid for pid in listeners(number) if pid is not None):
            with contextlib.suppress(psutil.Error):  # it has ended
                holders.append(f"{psutil.Process(pid).name()} (process {pid})")
        who = " and ".join(holders) or "a process that this user may not see"
        state, advice = f"is in use by {who}", "End that process, or choose another port."
    return Check("port", "error", f"{number} {state}", advice, RendezvousError.code)


# ------------------------------------------------------------- protection


def describe_protection() -> Check:
    """What is encrypted, and what is not."""
    return Check(
        "encryption",
        "ok",
        "connections to the coordinator need the token, and off loopback use TLS; "
        "gloo and NCCL can be neither encrypted nor authenticated",
        "Gradients between hosts are not encrypted: every machine of the network could read and change them. "
        "Give --trusted-network only if you trust all of them; otherwise put a VPN such as WireGuard below.",
    )


def check_token(given: Path | None) -> Check:
    """The secret of several hosts: there, and readable by this user alone."""
    named = given or (Path(text) if (text := os.environ.get("CORDEE_TOKEN_FILE")) else None)
    path = named or default_token_file()
    if named is None and not path.exists():
        return Check(
            "token", "ok", "none yet", "Several hosts need one: `cordee token`, and copy the file to each of them."
        )
    try:
        read_token(path)
    except SecurityError as problem:
        return Check("token", "error", str(problem), "Every run over several hosts refuses it.", problem.code)
    return Check("token", "ok", f"{path}, readable by you alone")


def check_twin() -> Check:
    """Whether `cordee twin` could make hosts and links: namespaces and links of limited speed."""
    trial = run_child(["unshare", "--net", "sh", "-ec", TWIN_TRIAL], timeout_s=TWIN_TRIAL_S)
    if trial.code == 0:
        return Check("twin", "ok", "network namespaces and links of limited speed can be made")
    return Check(
        "twin",
        "warning",
        trial.words,
        "Only `cordee twin` needs it: root, the programs ip and tc (iproute2), the kernel modules veth and sch_tbf; "
        "in a container --cap-add NET_ADMIN --cap-add SYS_ADMIN.",
    )

"""The doctor looks at the network: addresses, names, ports, and what protects the connections."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import queue
import socket
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from cordee.core.errors import RendezvousError, SecurityError
from cordee.group.token import default_token_file, read_token
from cordee.runtime.check import Check, error, ok, warning

NAME_S = 3.0
"""A name that is not resolved by then is as good as unknown."""
ANSWER_S = 2.0
"""How long our own socket on loopback may take to answer."""

# From linux/sockios.h and linux/if.h: the standard library has no names for them.
SIOCGIFADDR, SIOCGIFFLAGS, IFF_UP = 0x8915, 0x8913, 0x1


@dataclass(frozen=True)
class Interface:
    """A network interface that is up, and its first IPv4 address."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


def interfaces() -> list[Interface]:
    """The interfaces that are up and have an IPv4 address: gloo binds to one of these."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                flags = struct.unpack("16xH", fcntl.ioctl(sock, SIOCGIFFLAGS, request)[:18])[0]
                address = socket.inet_ntoa(fcntl.ioctl(sock, SIOCGIFADDR, request)[20:24])
            except OSError:
                continue  # no address, or gone by now
            if flags & IFF_UP:
                found.append(Interface(name, address))
    return found


def judge_interfaces(found: list[Interface]) -> Check:
    """What gloo binds to on one host, and what this host can offer to others."""
    inner = [one for one in found if one.is_loopback]
    outer = ", ".join(f"{one.name} {one.address}" for one in found if not one.is_loopback)
    offered = f"addresses for other hosts: {outer}" if outer else "no IPv4 address for other hosts"
    if not inner:
        return error(
            "interfaces",
            f"no loopback interface is up; {offered}",
            "Even a run on one host needs it: `ip link set lo up`.",
            RendezvousError.code,
        )
    advice = "Between hosts gloo takes the address that leads to --rendezvous HOST." if outer else ""
    return ok("interfaces", f"a run on one host stays on {inner[0].name} {inner[0].address}; {offered}", advice)


def host_name() -> Check:
    """Whether this host knows its own name."""
    name = socket.gethostname()
    answers: queue.SimpleQueue[list[str] | str] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            answers.put(sorted({str(one[4][0]) for one in found}))
        except OSError as problem:
            answers.put(str(problem))

    threading.Thread(target=resolve, name="cordee-resolve", daemon=True).start()  # the resolver knows no deadline
    try:
        answer = answers.get(timeout=NAME_S)
    except queue.Empty:
        answer = f"no answer within {NAME_S:g} s"
    return judge_host_name(name, answer)


def judge_host_name(name: str, answer: list[str] | str) -> Check:
    """The addresses of the name, or why there are none."""
    if isinstance(answer, str):
        return warning(
            "host name",
            f"{name} has no address here: {answer}",
            "For several hosts, give --rendezvous an address, or put the name into /etc/hosts.",
        )
    advice = ""
    if all(ipaddress.ip_address(one).is_loopback for one in answer):
        advice = "For several hosts, give --rendezvous this host's address: its name leads to loopback here."
    return ok("host name", f"{name} is {', '.join(answer)}", advice)


def loopback() -> Check:
    """Whether a connection to ourselves works: workers need one to their launcher."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(ANSWER_S)
            with socket.create_connection(server.getsockname()[:2], ANSWER_S) as there:
                here, _ = server.accept()
                with here:
                    here.sendall(b"!")
                    if there.recv(1) != b"!":
                        raise OSError("something else answered")
    except OSError as problem:
        return error(
            "loopback",
            f"no connection to 127.0.0.1: {problem}",
            "A firewall or a sandbox forbids it; no run can begin before it works.",
            RendezvousError.code,
        )
    return ok("loopback", "a port can be opened and reached")


# ------------------------------------------------------------- ports


def port(number: int) -> Check:
    """Whether a run can listen at this port."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the coordinator does
            listener.bind(("0.0.0.0", number))
            listener.listen(1)
    except OSError as problem:
        return judge_port(number, problem, holders(number) if problem.errno == errno.EADDRINUSE else [])
    return ok("port", f"{number} is free")


def judge_port(number: int, problem: OSError, held_by: list[str]) -> Check:
    """Why a port cannot be had."""
    if problem.errno == errno.EADDRINUSE:
        who = " and ".join(held_by) or "a process that this user may not see"
        return error(
            "port", f"{number} is held by {who}", "End that process, or choose another port.", RendezvousError.code
        )
    return error(
        "port",
        f"{number}: {problem.strerror}",
        "Ports below 1024 belong to root: choose a higher one." if number < 1024 else "Choose another port.",
        RendezvousError.code,
    )


def holders(number: int, proc: Path = Path("/proc")) -> list[str]:
    """The processes that listen at a port, as far as this user may see them."""
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            inodes |= listening(number, (proc / "net" / name).read_text(encoding="utf-8"))
        except OSError:
            continue
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for folder in sorted(proc.glob("[0-9]*"), key=lambda one: int(one.name)) if wanted else []:
        try:
            if any(_leads_to(one) in wanted for one in (folder / "fd").iterdir()):
                found.append(f"{(folder / 'comm').read_text(encoding='utf-8').strip()} (process {folder.name})")
        except OSError:
            continue  # another user's, or ended
    return found


def _leads_to(descriptor: Path) -> str:
    """What a descriptor of a process stands for; empty if it was closed while we looked, as the others are not."""
    try:
        return os.readlink(descriptor)
    except OSError:
        return ""


def listening(number: int, table: str) -> set[str]:
    """The inodes of the sockets that listen at a port, by the text of /proc/net/tcp or tcp6."""
    found = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == number:
            found.add(fields[9])
    return found


# ------------------------------------------------------------- protection


def protection() -> Check:
    """What is encrypted, and what is not."""
    return ok(
        "encryption",
        "connections to the coordinator need the token, and off loopback use TLS; "
        "gloo and NCCL can be neither encrypted nor authenticated",
        "Gradients between hosts travel in the clear: whoever can reach the network could read and change them. Give "
        "--trusted-network only if you trust all of them; otherwise put a VPN such as WireGuard below.",
    )


def token(given: Path | None) -> Check:
    """The secret of several hosts: there, and readable by this user alone."""
    named = given or (Path(text) if (text := os.environ.get("CORDEE_TOKEN_FILE")) else None)
    path = named or default_token_file()
    if named is None and not path.exists():
        return ok("token", "none yet", "Several hosts need one: `cordee token`, and copy the file to each of them.")
    try:
        read_token(path)
    except SecurityError as problem:
        return error("token", str(problem), "Every run over several hosts refuses it.", problem.code)
    return ok("token", f"{path}, readable by you alone")

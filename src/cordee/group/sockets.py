"""The sockets of a process group: gloo holds on to a blocked collective, but it notices a socket that was shut."""

from __future__ import annotations

import os
import socket


def open_sockets() -> dict[int, str]:
    """The sockets of this process: descriptor → inode, which tells a descriptor from its later namesake."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def shut(sockets: dict[int, str]) -> int:
    """Shut those that are open and connected, both ways; returns how many. Listeners stay: gloo aborts on them."""
    count = 0
    for descriptor, inode in sockets.items():
        try:
            with socket.socket(fileno=os.dup(descriptor)) as twin:
                if os.readlink(f"/proc/self/fd/{twin.fileno()}") != inode:
                    continue
                if twin.family in (socket.AF_INET, socket.AF_INET6) and not twin.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    twin.shutdown(socket.SHUT_RDWR)
                    count += 1
        except OSError:
            continue  # closed, or never connected
    return count

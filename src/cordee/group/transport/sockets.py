"""The sockets of a process group: gloo holds on to a blocked collective, but it notices a socket that was shut."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which Python does not name."""
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""A filter of one instruction: return 0, of every packet nothing is kept."""
_OWN: set[str] = set()
"""Connections of this process that are none of gloo's, by inode."""


def keep(sock: socket.socket) -> None:
    """This connection is none of a group's, also if it was made while a group was being formed."""
    _OWN.add(os.readlink(f"/proc/self/fd/{sock.fileno()}"))


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


def shut(sockets: dict[int, str]) -> None:
    """Shut those that are open and connected, both ways. Listeners stay: gloo aborts on them."""
    for _, twin in copies(sockets):
        if not twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with contextlib.suppress(OSError):  # never connected
                twin.shutdown(socket.SHUT_RDWR)


def seal(sockets: dict[int, str], interface: str) -> None:
    """Have the kernel drop whatever comes to those that listen at `interface`.

    gloo accepts every connection, keeps it open, and aborts the process when it may open no more. Once a group has
    formed, no peer connects any more, and no other program has to.
    """
    for _, twin in copies(sockets):
        if twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and twin.getsockname()[0] == interface:
            with contextlib.suppress(OSError):  # a sandbox that knows no filters
                twin.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(_DROP_ALL)))


def copies(sockets: dict[int, str]) -> Iterator[tuple[int, socket.socket]]:
    """Each that is still open, of the internet and not kept: its number, and a descriptor of its own, closed again."""
    for descriptor, inode in sockets.items():
        try:
            twin = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue  # closed
        with twin:
            same = os.readlink(f"/proc/self/fd/{twin.fileno()}") == inode and inode not in _OWN
            if same and twin.family in (socket.AF_INET, socket.AF_INET6):
                yield descriptor, twin

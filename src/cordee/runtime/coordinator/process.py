"""The process that coordinates a run: a hub, and a link to the launcher that started it.

It keeps nothing that it could not lose, and ends with its launcher.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from functools import partial
from typing import NoReturn

from cordee.runtime.coordinator import link
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.coordinator.known import Successor
from cordee.runtime.coordinator.link import Frame, Line, Queue
from cordee.runtime.notices import HeardOut

PULSE_S = 0.5
"""How often it says that it is there."""


def coordinate(listener: int, line: int) -> NoReturn:
    """Until the launcher hangs up; both are open files, where peers come and where the launcher is."""
    # A scheduler may signal all processes of a run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    launcher = Line(socket.socket(fileno=line))
    try:
        _serve(launcher, socket.socket(fileno=listener))
    except OSError:  # the launcher is gone
        pass
    finally:
        os._exit(0)


def _serve(launcher: Line, listener: socket.socket) -> None:
    begin = launcher.receive(link.decode_call)
    if not isinstance(begin, link.Begin):
        return
    successor = Successor(begin.known, listener, Queue(launcher), begin.folder, begin.standing, begin.tickets)
    hub = Hub(begin.address, expected=0, successor=successor)
    try:
        launcher.send(Frame(known=hub.known(), pid=os.getpid()))
        while True:
            readable, _, _ = select.select([launcher.sock], [], [], PULSE_S)
            if not readable:
                launcher.send(Frame())
            elif (call := launcher.receive(link.decode_call)) is None:
                return
            else:
                _act(hub, call, launcher)
    finally:  # a launcher that ends may hang up on what it has not read, which is an error here
        hub.close()


def _act(hub: Hub, call: link.Call, launcher: Line) -> None:
    match call:
        case link.Gone(worker, reason):
            hub.lose(worker, reason)
        case link.Invite(seat):
            hub.call(hub.coming.invite, seat)
        case link.AskToLeave(worker, reason):
            hub.call(hub.coming.leave, worker, reason)
        case link.LetIn(late):
            hub.call(hub.launchers.let_in, late)
        case link.Halt(reason, at_once, again):
            hub.abort(reason, again) if at_once else hub.ask_to_stop(reason)
        case link.StartOn(node, start):
            hub.start_on(node, start)
        case link.Expect(servers, persist):
            hub.call(partial(hub.stewards.expect, servers, persist=persist))
        case link.Leave(host, reason, certain):
            hub.call(hub.launchers.left, host, reason, certain)
        case link.HearOut(seconds):
            threading.Thread(target=_hear_out, args=(hub, seconds, launcher), daemon=True).start()


def _hear_out(hub: Hub, seconds: float, launcher: Line) -> None:
    hub.hear_out(seconds)
    launcher.send(Frame(notice=HeardOut()))

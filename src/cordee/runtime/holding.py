"""The process of a parameter server: listens, connects to the coordinator, and serves until the run is over."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

from cordee.core.errors import CoordinatorLost, Evicted, WorkerFailed
from cordee.core.events import TrafficEvent
from cordee.core.interpreter import search_in
from cordee.group import messages
from cordee.group.bulk import Link, Listener, dial
from cordee.group.client import Client
from cordee.group.messages import Message, Place, Who, name_of
from cordee.group.strangers import Strangers
from cordee.group.wire import Address
from cordee.runtime.spec import WorkerSpec
from cordee.sync.server.holder import Holder

REPORT_EVERY_S = 1.0
"""How often a server says what it has sent."""


def hold(spec: WorkerSpec) -> int:
    """Everything from the fork to the exit code."""
    if spec.target.path:  # an optimizer of the user's own may lie beside the job
        search_in([Path(spec.target.path).resolve().parent])
    listener = Listener(spec.interface, spec.hub.token, tls=spec.hub.tls, silence_s=spec.deadline_s)
    who = Who(
        "server", socket.gethostname(), spec.worker, interface=spec.interface, port=listener.port, pid=os.getpid()
    )
    ended, code, said = threading.Event(), 0, (0, 0)

    def end(with_code: int) -> None:
        nonlocal code
        code = code or with_code
        ended.set()

    def reach(place: Place) -> Link:
        address = Address(place.interface, place.port, spec.hub.token, spec.hub.tls)
        return dial(address, who, spec.deadline_s, listener.tally)

    def report() -> None:
        nonlocal said
        said, before = (listener.tally.sent, listener.tally.near), said
        if said != before:
            client.post(TrafficEvent(spec.worker - messages.FIRST_SERVER, who.host, *said))

    def hear(message: Message) -> None:
        match message:
            case messages.Holders():
                holder.see(message)
            case messages.Break(generation):
                holder.break_up(generation)
            case messages.Farewell():
                end(0)
            case messages.Abort():
                end(WorkerFailed.code)
            case messages.Evicted():
                os._exit(Evicted.code)  # at once: what it would still say counts no more

    client = Client(spec.hub, who, hear, lambda how: os._exit(CoordinatorLost.code))
    client.at = "holding parameters"
    listener.strangers = Strangers(name_of(spec.worker), client.post)
    logs = Path(spec.out) / "servers" if spec.plan.persist else None
    holder = Holder(spec.worker, reach, client.send, deadline_s=spec.deadline_s, logs=logs)
    listener.start(holder.serve)
    client.start()
    while not ended.wait(REPORT_EVERY_S):
        report()
    report()
    sys.stdout.flush()
    listener.close()
    listener.strangers.tell()
    holder.close()
    client.close()
    return code

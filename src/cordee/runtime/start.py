"""Start the workers of a run on this host, watch over them, and end with them."""

from __future__ import annotations

import contextlib
import secrets
from functools import partial
from typing import Any

from cordee.core import interrupts
from cordee.core.events import Listener, WarningEvent
from cordee.group.wire import Address
from cordee.runtime.coordinator.controller import Controller
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.engines.local import LocalEngine
from cordee.runtime.engines.seam import seats
from cordee.runtime.launch import Launch

LOOPBACK = "127.0.0.1"


def run(launch: Launch, listen: Listener, sent_job: bytes | None = None) -> dict[str, Any]:
    """Run to the end on this host; returns the result, or raises what ended it."""
    with interrupts.counted() as signals, contextlib.ExitStack() as ends:
        launch.check()
        launch.settle(lambda message: listen(WarningEvent(message)))
        interrupts.check()
        recorder = launch.recorder(listen)
        ends.callback(recorder.close)
        hub = Hub(Address(LOOPBACK, 0, secrets.token_hex(32)), expected=launch.workers)
        ends.callback(hub.close)
        engine = LocalEngine(hub.notices, partial(launch.spec, hub.address, LOOPBACK), launch.output, sent_job)
        ends.callback(engine.close)

        def begin() -> None:
            launch.begin(recorder, launch.workers)
            engine.start(seats([launch.workers]))

        return Controller(launch, hub, engine, recorder).watch(begin, signals)

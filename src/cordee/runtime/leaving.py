"""A signal to one worker asks it to leave between two steps, so that nothing of its work is lost.

SIGTERM is what a machine that is taken away sends (a spot instance, a drained node, `kill`); SIGUSR1 is the notice that
batch systems can be told to send before. A second SIGTERM ends the process at once.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from types import FrameType

from cordee.group.channel import Channel
from cordee.group.messages import Leaving

NOTICES = (signal.SIGTERM, signal.SIGUSR1)


def end_by_notices() -> None:
    """From now on these signals end this process, which the others take for a loss."""
    for number in NOTICES:
        signal.signal(number, signal.SIG_DFL)


def heed_notices(channel: Channel) -> None:
    """From now on these signals ask this worker to leave; only its main thread may say so."""
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    asked = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        asked = True
        came.put(number)  # no more: what this signal interrupts may hold the lock of the connection

    def tell() -> None:
        number = came.get()
        channel.send(Leaving(f"it was asked to leave by {signal.Signals(number).name}"))

    def forget() -> None:
        """In a process that the user's code forks, which does not train."""
        for number in NOTICES:
            if signal.getsignal(number) is hear:
                signal.signal(number, signal.SIG_DFL)

    threading.Thread(target=tell, name="cordee-leaving", daemon=True).start()
    os.register_at_fork(after_in_child=forget)
    for number in NOTICES:
        signal.signal(number, hear)

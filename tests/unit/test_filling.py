"""A parameter server that fills a backup."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from cordee.core.events import WarningEvent
from cordee.group.bulk import Link, Listener, dial
from cordee.group.messages import Filled, Holders, Holding, Place, Posted, Who
from cordee.group.wire import LOOPBACK, Address
from cordee.sync.server import messages as said
from cordee.sync.server.holder import Holder
from cordee.sync.server.messages import decode
from serving import Serving

WAIT_S = 10.0


def test_a_backup_that_refuses_what_it_is_given_is_told_and_tried_again() -> None:
    """It goes on without one, and a change of the servers is another occasion."""
    serving, told, refusals = Serving(), queue.Queue[Any](), ["no module named mine"]
    serving.train()

    second = Holder(1, lambda place: pytest.fail("it fills nobody"), told.put, deadline_s=WAIT_S, logs=None)

    def answer(link: Link, who: Who) -> None:
        if refusals:
            link.receive(decode)
            link.send(said.Refused(refusals.pop()))
        else:
            second.serve(link, who)

    backup = Listener(LOOPBACK, serving.token, tls=False, silence_s=WAIT_S)
    backup.start(answer)
    there = Place(1, "yonder", LOOPBACK, backup.port)
    address = Address(LOOPBACK, backup.port, serving.token)
    serving.holder._tell = told.put
    serving.holder._copying._reach = lambda place: dial(address, Who("server", "here", 0), WAIT_S)
    first = serving.channel.holders.shards[0].first
    for holder in (second, serving.holder):
        holder.see(Holders(2, [Holding(first, None, there)]))
    posted = told.get(timeout=WAIT_S)
    assert isinstance(posted, Posted)
    [event] = posted.events
    assert isinstance(event, WarningEvent)
    assert "yonder" in event.message and "no module named mine" in event.message and "no backup" in event.message
    serving.train()
    serving.holder.see(Holders(3, [Holding(first, None, there)]))
    assert told.get(timeout=WAIT_S) == Filled(1)
    serving.train()
    assert second._stores[0].version == serving.step
    serving.shard.close()
    serving.listener.close()
    backup.close()

"""Connections that were refused: whatever comes, what is remembered and told stays little."""

from __future__ import annotations

from cordee.core.events import StrangerEvent
from cordee.group.strangers import MOST_KINDS, OTHERS, Strangers
from cordee.watch.words import tell


def test_a_hundred_thousand_attempts_are_a_few_lines() -> None:
    told: list[StrangerEvent] = []
    strangers = Strangers("the coordinator", told.append)
    for _ in range(99_999):
        strangers.refuse("127.0.0.1", "sent what is no message")
    assert [event.count for event in told] == [1, 10, 100, 1000, 10_000]
    strangers.tell()
    strangers.tell()
    assert [event.count for event in told[5:]] == [99_999], "at the end, once"
    assert tell(told[0]).endswith(" refused a connection from 127.0.0.1: it sent what is no message")
    assert "127.0.0.1 99,999 times: it" in tell(told[-1])


def test_many_addresses_take_little_memory() -> None:
    told: list[StrangerEvent] = []
    strangers = Strangers("server 0", told.append)
    for number in range(50_000):
        strangers.refuse(f"10.0.{number % 256}.{number // 256}", f"reason {number % 3}")
    strangers.tell()
    assert len(strangers._counts) == len(strangers._told) == MOST_KINDS + 3
    assert len(told) < 50
    last = {(event.address, event.reason): event.count for event in told}
    assert sum(last.values()) == 50_000
    assert {address for address, _ in last} >= {OTHERS, "10.0.0.0"}

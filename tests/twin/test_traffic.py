"""What goes over a link while it is changed, cut and mended: bytes counted in windows of time."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass, field

import pytest

from harness import until
from twin.emulated import Emulated, Up

RECEIVE = """
import socket, threading, time
server = socket.create_server(("a", 5000))
print("ready", flush=True)
connection = server.accept()[0]

def tell():  # by the kernel's count: this process may have to wait for its turn, and then reads much at once
    while True:
        with open("/proc/net/dev") as file:
            moment = time.monotonic()
            counted = next(line for line in file if "eth0:" in line)
        print(moment, counted.split(":")[1].split()[0], flush=True)
        time.sleep(0.05)

threading.Thread(target=tell, daemon=True).start()
while connection.recv(65536):
    pass
"""
SEND = """
import socket
connection = socket.create_connection(("a", 5000), timeout=120)
print("ready", flush=True)
while True:
    connection.sendall(bytes(65536))
"""
LEAST_S = 0.7


@dataclass
class Flow:
    """What has come over host a's link."""

    receiver: subprocess.Popen[str]
    told: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def total(self) -> int:
        return self.told[-1][1] if self.told else 0

    def bit_s(self, after_s: float, seconds: float = LEAST_S) -> float:
        """How much comes in a window that begins so long after now."""
        begin = time.monotonic() + after_s
        until(lambda: self.told and self.told[-1][0] >= begin + seconds)
        window = [one for one in self.told if one[0] >= begin]
        return (window[-1][1] - window[0][1]) * 8 / (window[-1][0] - window[0][0])

    def _listen(self) -> None:
        assert self.receiver.stdout is not None
        for line in self.receiver.stdout:
            moment, total = line.split()
            self.told.append((float(moment), int(total)))


@pytest.fixture
def twin(up: Up) -> Emulated:
    return up("2 x link=10mbit")


def test_a_link_is_changed_cut_and_mended_under_one_connection(twin: Emulated) -> None:
    with twin.running("a", RECEIVE) as receiver, twin.running("b", SEND) as sender:
        flow = Flow(receiver)
        until(lambda: flow.total > 100_000)
        assert flow.bit_s(0.0) < 1.2 * 10e6
        # Others may use the processor at the same moment.
        assert any(flow.bit_s(0.0) > 0.95 * 10e6 for _ in range(3)), "a sender fills its link, headers and all"

        twin.made.set("b", {"link": 50e6})
        assert flow.bit_s(0.5, 0.5) < 1.2 * 10e6, "the other end is still a slow one"
        twin.say("set", "a", "link=50mbit")
        # What is limited to 10 never gets there.
        assert any(flow.bit_s(1.0) > 2 * 10e6 for _ in range(3))
        twin.say("set", "b", "link=5mbit")
        assert flow.bit_s(1.0) < 1.2 * 5e6

        twin.say("cut", "b")
        assert flow.bit_s(0.3) < 1e4, "nothing but a word between neighbours now and then"
        before = flow.total
        twin.say("mend", "b")
        until(lambda: flow.total > before + 200_000)
        assert (sender.poll(), receiver.poll()) == (None, None), "it is the same connection"

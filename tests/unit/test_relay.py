"""What workers print, line by line."""

from __future__ import annotations

import os

from cordee.runtime.relay import MOST, Output, Relay
from harness import until

BOTH = frozenset((1, 2))


def relay() -> tuple[Relay, list[str]]:
    shown: list[str] = []
    return Relay(Output(shown.append, BOTH)), shown


def worker(made: Relay) -> int:
    """A worker's own copy of its output."""
    with made.outputs() as (out, error):
        assert out == error
        return os.dup(out)


def test_lines_come_when_they_are_printed_and_do_not_mix() -> None:
    made, shown = relay()
    one, other = worker(made), worker(made)
    os.write(one, b"first half, ")
    os.write(other, b"a line\nand one\r\n")
    until(lambda: shown == ["a line", "and one"])
    os.write(one, "second hälf\nrest".encode())
    until(lambda: shown[2:] == ["first half, second hälf"])
    os.close(one)
    os.close(other)
    made.close()
    made.close()
    assert shown[3:] == ["rest"]


def test_a_line_begins_anew_or_does_not_end() -> None:
    made, shown = relay()
    one = worker(made)
    os.write(one, b"\r 10%\r 20%\r 30%\n" + b"x" * (MOST - 100))
    os.write(one, b"x" * 101)
    until(lambda: len(shown) >= 2)
    assert shown[0] == " 30%" and shown[1] == "x" * MOST
    os.close(one)
    made.close()
    assert shown[2:] == ["x"]


def test_an_early_end_of_one_does_not_end_the_reading_of_others() -> None:
    made, shown = relay()
    os.close(worker(made))
    until(lambda: not made._threads[0].is_alive())
    late = worker(made)
    os.write(late, b"here\n")
    until(lambda: shown == ["here"])
    os.close(late)
    made.close()


def test_a_process_that_holds_the_output_keeps_nobody_waiting() -> None:
    made, shown = relay()
    held = worker(made)
    os.write(held, b"last words\n")
    made.close()
    assert shown == ["last words"]
    os.close(held)


def test_a_reader_that_is_gone_is_no_reason_to_stop() -> None:
    tried = []

    def show(text: str) -> None:
        tried.append(text)
        raise BrokenPipeError

    made = Relay(Output(show, BOTH))
    one = worker(made)
    for _ in range(3):
        os.write(one, b"x" * MOST + b"\n")  # more than a pipe holds: the relay goes on reading
    os.close(one)
    made.close()
    assert set("".join(tried)) == {"x"}


def test_streams_that_need_nothing_stay_what_they_are() -> None:
    with Relay(Output()).outputs() as streams:
        assert streams == (1, 2)
    made = Relay(Output(lambda text: None, frozenset((2,))))
    with made.outputs() as (out, error):
        assert out == 1 and error != 2
    made.close()

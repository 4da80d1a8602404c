"""A run in words: who is slow and why, and numbers as people read them."""

from __future__ import annotations

import dataclasses

import pytest

from cordee.core.events import CutEvent
from cordee.core.words import amount
from cordee.watch.summary import Worker
from cordee.watch.verdict import verdict
from cordee.watch.words import duration, figure, milliseconds, tell


def made_worker(
    number: int, data: float, compute: float, communication: float, waiting: float, begun: int = 1
) -> Worker:
    """A worker of ten steps with these seconds."""
    parts = {"data": data, "compute": compute, "communication": communication, "waiting": waiting}
    return Worker(number, "h", 1, "cpu", 1, (), "", 10, 10, parts, 0.0, 0.0, 0.0, 0.0, 0, 0.0, start=begun)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (
            [(0, 30, 30, 40), (0, 30, 30, 40), (0, 69, 30, 1)],
            "Worker 2 is the slowest: it spends 69% of its steps computing, 2.3 times as long as the others, "
            "while the others wait 40% of their time.",
        ),
        (
            [(60, 30, 10, 0), (5, 30, 10, 55)],
            "Worker 0 is the slowest: it spends 60% of its steps waiting for data, 12.0 times as long as the other, "
            "while the other waits 55% of its time.",
        ),
        ([(1, 90, 8, 1), (1, 89, 8, 2)], "No worker holds the others up, and most of the time is spent computing ("),
        (
            [(5, 50, 37, 8), (5, 50, 37, 8)],
            "No worker holds the others up, and the largest part of the time is spent",
        ),
        (  # what the bars show is what is said
            [(5, 50, 15, 30), (5, 60, 15, 20), (5, 55, 15, 25)],
            "The workers wait for each other by turns; none of them is always the last. Most of the time is spent "
            "computing (data 5%, compute 55%, communication 15%, waiting 25%).",
        ),
        ([(34, 31, 30, 5), (34, 31, 30, 5)], "The largest part of the time is spent waiting for data ("),
        ([(1, 20, 78, 1), (1, 20, 78, 1)], "Communication takes most of the time"),
        ([(80, 10, 8, 2), (80, 10, 8, 2)], "Most of the time is spent waiting for data"),
        ([(1, 30, 9, 60), (1, 30, 9, 60)], "The workers wait for each other by turns"),
        ([(20, 80, 0, 0)], "Worker 0 works alone (data 20%, compute 80%, communication 0%, waiting 0%)."),
    ],
)
def test_who_is_slow_and_why(workers: list[tuple[float, float, float, float]], said: str) -> None:
    made = [made_worker(number, *parts) for number, parts in enumerate(workers)]
    assert verdict(made).startswith(said)


def test_time_in_callbacks_is_not_called_computing() -> None:
    """One worker sleeps in a callback, then all of them do, then one that is alone."""
    quick = made_worker(0, 1, 10, 4, 85)
    slow = dataclasses.replace(quick, worker=1, time_s={"data": 1, "compute": 10, "callbacks": 85, "communication": 4})
    assert verdict([quick, slow]).startswith(
        "Worker 1 is the slowest: it spends 85% of its steps in callbacks, while the other waits 85% of its time."
    )
    assert verdict([slow, dataclasses.replace(slow, worker=2)]).startswith(
        "Most of the time is spent in callbacks (data 1%, compute 10%, callbacks 85%, communication 4%"
    )
    assert verdict([slow]).startswith("Worker 1 works alone (data 1%, compute 10%, callbacks 85%, ")


def test_a_process_that_was_stopped_is_told() -> None:
    quick, slow = made_worker(0, 0, 3, 1, 6), made_worker(1, 0, 9, 1, 0)
    stopped = dataclasses.replace(slow, paused_s=5.0)
    assert verdict([quick, stopped]).endswith(
        "waits 60% of its time. Its process did not run for 500 ms of each step: it was stopped, or had no processor."
    )
    assert "not run" not in verdict([quick, slow])
    assert "not run" not in verdict([dataclasses.replace(quick, paused_s=5.0), stopped]), "as the other one"


def test_more_workers_than_cores_are_told() -> None:
    shared = [dataclasses.replace(made_worker(number, 5, 55, 15, 25), cores=2) for number in range(3)]
    said = "3 workers share 2 cores: some of this time is spent waiting for a free core."
    assert verdict(shared).endswith(said)
    slow = dataclasses.replace(shared[2], time_s={"data": 5, "compute": 80, "communication": 15, "waiting": 0})
    assert "Worker 2 is the slowest" in verdict([*shared[:2], slow]) and verdict([*shared[:2], slow]).endswith(said)
    apart = [dataclasses.replace(one, host=f"h{one.worker % 2}") for one in shared]
    assert "share" not in verdict(apart) and "share" not in verdict(shared[:2])
    assert "share" not in verdict([dataclasses.replace(one, device="cuda:0") for one in shared])
    assert "share" not in verdict([dataclasses.replace(one, cores=None) for one in shared])
    tight = [dataclasses.replace(one, cores=0.75) for one in apart]
    assert verdict(tight).endswith(
        "2 workers share 0.75 cores on h0: some of this time is spent waiting for a free core."
    )


def test_workers_of_different_starts_are_not_compared() -> None:
    first = [made_worker(0, 0, 1, 1, 98), made_worker(1, 0, 99, 1, 0)]
    again = [made_worker(number, 100, 800, 50, 50, begun=2) for number in (0, 1)]
    told = "In start 2, which did 10 of all 20 steps: "
    assert verdict([*first, *again]).startswith(f"{told}no worker holds the others up")
    assert verdict([*first, *again[:1]]).startswith(f"{told}worker 0 works alone (data 10%, compute 80%")


def test_it_is_the_start_with_the_most_steps_that_is_judged() -> None:
    """Not the one that took longest, which may have been slow on purpose."""
    slow = [dataclasses.replace(made_worker(number, 0, 900, 50, 50), steps=20) for number in (0, 1)]
    long = [dataclasses.replace(made_worker(number, 9, 1, 0, 0, begun=2), steps=220) for number in (0, 1)]
    said = "In start 2, which did 220 of all 240 steps: most of the time is spent waiting for data"
    assert verdict([*slow, *long]).startswith(said)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (duration(0.0123), "12 ms"),
        (duration(59.94), "59.9 s"),
        (duration(60), "1 min"),
        (duration(3725), "1 h 2 min"),
        (duration(3600 * 50), "2 days 2 h"),
        (milliseconds(1.234), "1.23 ms"),
        (milliseconds(12.34), "12.3 ms"),
        (milliseconds(1234.5), "1,234 ms"),
        (milliseconds(61_000), "1 min 1 s"),
        (amount(0), "0 B"),
        (amount(1536), "1.5 KiB"),
        (amount(300 * 2**20), "300 MiB"),
        (figure(0.12345), "0.1235"),
        (figure(1.5e-7), "1.500e-07"),
        (figure(0.0), "0.0000"),
    ],
)
def test_numbers_as_people_read_them(made: str, words: str) -> None:
    assert made == words


def test_a_cut_for_unequal_workers_says_so() -> None:
    units = [("0", 0, 1.0), ("1", 0, 1.0), ("2", 1, 1.0)]
    said = [tell(CutEvent(1, [], [], 0.0, units=units, speeds=speeds)) for speeds in ([], [1.0, 1.0], [1.0, 0.512])]
    assert said[0] == said[1] and said[0].startswith("2 stages; the loss")
    assert said[2].startswith("2 stages for workers of unequal speed, 1:0.51; the loss")

from __future__ import annotations

import pytest

from cordee.core.times import Breakdown, TimeTotals, shares
from records import times_of


def record(first: int, *steps: tuple[float, float, float, float]) -> dict[str, object]:
    """Steps as (data ms, compute ms, blocked ms, arrived s); nothing is known to be waiting."""
    return waited(first, *((*step, 0.0) for step in steps))


def waited(first: int, *steps: tuple[float, float, float, float, float]) -> dict[str, object]:
    """Steps as (data ms, compute ms, blocked ms, arrived s, waited ms)."""
    data, compute, blocked, arrived, known = (list(column) for column in zip(*steps, strict=True))
    times = {"data_ms": data, "compute_ms": compute, "blocked_ms": blocked, "waited_ms": known, "arrived": arrived}
    return {"from": first, "samples": [1] * len(data), **times}


def test_whoever_comes_first_waits_for_the_last_and_both_communicate() -> None:
    split = TimeTotals()
    split.expect([0, 1])
    split.add(times_of(0, record(5, (1, 50, 60, 10.00))))
    split.add(times_of(1, record(5, (1, 100, 10, 10.05))))
    totals = split.totals()
    assert totals["0"] == pytest.approx(
        {"data": 0.001, "compute": 0.05, "callbacks": 0.0, "communication": 0.01, "waiting": 0.05}
    )
    assert totals["1"] == pytest.approx(
        {"data": 0.001, "compute": 0.1, "callbacks": 0.0, "communication": 0.01, "waiting": 0.0}
    )


def test_the_parts_add_up_to_the_whole_whatever_the_clocks_say() -> None:
    split = TimeTotals()
    split.expect([0, 1])
    split.add(times_of(0, record(0, (2, 3, 4, 1.0), (2, 3, 4, 2.0))))
    split.add(times_of(1, record(0, (5, 6, 7, 1.006), (5, 6, 7, 901.0))))
    totals = split.totals()
    assert sum(totals["0"].values()) == pytest.approx(0.018)
    assert sum(totals["1"].values()) == pytest.approx(0.036)
    assert sum(shares(totals).values()) == pytest.approx(1.0)


def test_what_a_lost_worker_did_not_report_is_not_waited_for() -> None:
    split = TimeTotals()
    split.expect([0, 1, 2])
    split.add(times_of(0, record(0, (0, 1, 8, 1.000))))
    split.add(times_of(1, record(0, (0, 5, 8, 1.004))))
    split.expect([0, 1])
    assert split.totals()["0"]["waiting"] == pytest.approx(0.004)


def test_reports_may_come_in_any_order_and_size() -> None:
    split = TimeTotals()
    split.expect([0, 1])
    split.add(times_of(0, record(0, (0, 1, 2, 1.0), (0, 1, 2, 2.0), (0, 1, 2, 3.0))))
    split.add(times_of(1, record(0, (0, 2, 2, 1.001))))
    split.add(times_of(1, record(1, (0, 1, 2, 2.001), (0, 1, 2, 3.001))))
    assert split.totals()["0"]["waiting"] == pytest.approx(0.003)
    assert shares({}) == {}


def test_what_is_known_to_be_waiting_is_not_communication() -> None:
    split = TimeTotals()
    split.expect([0, 1])
    split.add(times_of(0, waited(0, (0, 10, 60, 1.00, 50))))  # waited within a layer, then both came at the same time
    split.add(times_of(1, waited(0, (0, 60, 10, 1.00, 0))))
    totals = split.totals()
    assert totals["0"] == pytest.approx(
        {"data": 0.0, "compute": 0.01, "callbacks": 0.0, "communication": 0.01, "waiting": 0.05}
    )
    assert totals["1"] == pytest.approx(
        {"data": 0.0, "compute": 0.06, "callbacks": 0.0, "communication": 0.01, "waiting": 0.0}
    )


def test_waiting_for_the_last_one_to_be_ready_is_no_part_of_the_first_step() -> None:
    split = TimeTotals()
    split.expect([0, 1, 2])
    split.add(times_of(0, waited(0, (1, 9, 990, 10.000, 0), (1, 9, 10, 11.0, 0))))  # ready at 9.990
    split.add(times_of(1, waited(0, (1, 9, 40, 10.950, 0), (1, 9, 10, 11.0, 0))))  # ready at 10.940
    split.add(times_of(2, waited(0, (1, 9, 950, 10.960, 930), (1, 9, 10, 11.0, 0))))  # ready at 10.020
    for worker, parts in split.totals().items():
        assert sum(parts.values()) == pytest.approx({"0": 0.07, "1": 0.07, "2": 0.06}[worker]), worker
        assert parts["data"] == pytest.approx(0.002) and parts["compute"] == pytest.approx(0.018)


def test_every_step_is_closed_once_all_have_reported() -> None:
    told: list[tuple[int, list[int]]] = []
    split = Breakdown(lambda first, blocks: told.append((first, sorted(blocks))))
    split.expect([0, 1])
    split.add(times_of(0, record(3, (0, 1, 2, 1.0), (0, 1, 2, 2.0))))
    assert told == []
    split.add(times_of(1, record(3, (0, 1, 2, 1.0))))
    assert told == [(3, [0, 1])]
    split.finish()
    assert told == [(3, [0, 1]), (4, [0])]


def test_a_lost_worker_is_not_waited_for() -> None:
    told: list[tuple[int, list[int]]] = []
    split = Breakdown(lambda first, blocks: told.append((first, sorted(blocks))))
    split.expect([0, 1, 2])
    split.add(times_of(0, record(0, (0, 1, 8, 1.000))))
    split.add(times_of(1, record(0, (0, 5, 8, 1.004))))
    assert told == []
    split.expect([0, 1])
    assert told == [(0, [0, 1])]


def test_the_next_session_of_a_script_begins_with_step_0_again() -> None:
    told: list[tuple[int, list[int]]] = []
    split = Breakdown(lambda first, blocks: told.append((first, sorted(blocks))))
    split.expect([0, 1])
    for _ in range(2):
        for worker in (0, 1):
            split.add(times_of(worker, record(0, (0, 1, 2, 1.0), (0, 1, 2, 2.0))))
    assert told == [(0, [0, 1]), (0, [0, 1])]

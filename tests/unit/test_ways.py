"""What sync=auto decides, as a value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cordee.group.team import Team
from cordee.sync import adaptive, measuring
from cordee.sync.measuring import LONG_S, SIZES, Check, Clock, Probe, costs_of
from cordee.sync.ways import WAYS, Cost, Decision, Measured, Tried, Way, decide, first_way, forecast

MBIT = 1e6 / 8
EXACT = Way()
COSTS = {"none": Cost(0.0, 8e6), "bf16": Cost(0.005, 4e6), "int8": Cost(0.01, 2e6), "onebit": Cost(0.01, 2.8e5)}
"""Of 8 MB of gradients."""


def decided(
    mbit: float, now: Way = EXACT, *, compute_s: float = 0.5, step_s: float = 0.0, tried: Tried | None = None
) -> Decision:
    return decide(Measured(compute_s, compute_s, step_s, mbit * MBIT), COSTS, WAYS, now, tried or {})


def test_the_gentlest_way_that_hides_is_taken() -> None:
    """0.5 s of computing: half of it hides what is sent."""
    assert decided(1000).choice == Way()  # 0.064 s
    assert decided(200).choice == Way("bf16")  # 0.32, 0.16 s
    assert decided(100).choice == Way("int8")  # 0.32, 0.16 s
    assert decided(60).choice == Way("int8", 8)  # 0.28 s, in 8 steps of 0.5 s
    assert decided(10).choice == Way("onebit", 8)  # 0.23 s, in 8 steps
    assert decided(2).choice == Way("onebit", 16)  # 8, 1.1 s


def test_most_waiting_is_accepted_by_the_last_way_that_is_near() -> None:
    """Eight steps of 0.5 s, and a merge by one bit of 0.8 s: 1.2 times the computing. By int8 it would be too long."""
    assert decided(2.84).choice == Way("onebit", 8)
    assert decided(20).choice == Way("onebit", 8), "int8 every 8 steps: 1.2 times the computing"


def test_the_first_steps_do_not_wait_long() -> None:
    first = {mbit: first_way(WAYS, COSTS, mbit * MBIT, 0.1) for mbit in (1000, 400, 200, 40, 10, 0.1)}
    assert first[1000] == Way()  # 0.064 s
    assert first[400] == Way("bf16")  # 0.16, 0.08 s
    assert first[200] == Way("int8")  # 0.32, 0.16, 0.08 s
    assert first[40] == Way("int8", 8)  # 0.4 s, in 8 steps
    assert first[10] == Way("onebit", 8)  # 1.6, 0.22 s, in 8 steps
    assert first[0.1] == Way("onebit", 32), "none is short: the shortest"
    gradients = [way for way in WAYS if not way.every]
    assert first_way(gradients, COSTS, 1 * MBIT, 0.1) == Way("int8"), "the training cannot merge"
    assert first_way(WAYS[:1], COSTS, 1 * MBIT, 0.1) == Way(), "faithful=same"


def test_where_nothing_hides_a_step_near_the_shortest_is_taken() -> None:
    found = decided(0.1, compute_s=0.001)
    assert found.choice == Way("onebit", 32) and "nothing hides" in found.reason


def test_it_goes_back_only_with_room_to_spare() -> None:
    assert decided(250).choice == Way()  # 0.256 s of 0.25
    assert decided(250, Way("bf16")).choice == Way("bf16")
    assert decided(400, Way("bf16")).choice == Way()


def test_what_was_measured_counts_more_than_a_wrong_forecast() -> None:
    assert decided(1000, step_s=0.52).choice == Way(), "within what times vary by"
    assert decided(1000, step_s=0.7).choice == Way("bf16")
    assert decided(1000, Way("bf16"), tried={Way(): (900 * MBIT, 1.4)}).choice == Way("bf16"), "it was slow before"
    assert decided(2000, Way("bf16"), tried={Way(): (900 * MBIT, 1.4)}).choice == Way(), "the link is another one"


def test_a_forecast_stands_for_each_way() -> None:
    assert list(decided(10).forecast_s) == list(WAYS)
    measured = Measured(0.5, 0.4, 0.0, 10 * MBIT)
    assert forecast(Way(), measured, COSTS, measured.link) == pytest.approx(0.5 + 6.4 - 0.25)
    assert forecast(Way("int8", 8), measured, COSTS, measured.link) == pytest.approx(0.4 + (0.01 + 1.6) / 8)


def test_ways_are_told_as_a_plan_writes_them() -> None:
    told = [str(way) for way in (Way(), Way("int8"), Way("none", 4), Way("topk", 8))]
    assert told == ["none", "int8", "local_steps=4", "local_steps=8,compress=topk"]


def test_what_codecs_take_is_tried() -> None:
    parameters = [nn.Parameter(torch.zeros(1000, 1000)), nn.Parameter(torch.zeros(1000))]
    two, eight = (costs_of(parameters, ["none", "bf16", "int8", "topk", "powersgd"], count, count) for count in (2, 8))
    assert two["none"].sent == 4 * 1_001_000 and eight["none"].sent == pytest.approx(7 * 1_001_000)
    assert two["bf16"].sent == 2 * 1_001_000 and eight["bf16"].sent == 14 * 1_001_000, "gathered, not summed"
    assert two["topk"].sent == pytest.approx(6 * 1_001_000 / 256, rel=1e-3)
    assert two["powersgd"].sent == 4 * (4 * 2000 + 1000)
    assert two["none"].seconds == 0.0 < two["int8"].seconds
    by_hosts = costs_of(parameters, ["none", "bf16"], 8, 2)  # two hosts with four replicas each
    assert (by_hosts["none"].sent, by_hosts["bf16"].sent) == (two["none"].sent, eight["bf16"].sent)


def test_the_first_step_counts_neither_alone_nor_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 7.0, 7.5, 8.0, 8.6, 10.6])
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(times))
    clock = Clock(Team(), warms_up=True)
    for _ in range(3):
        clock.updated()
    clock.merged(3)
    assert (clock.compute_s, clock.step_s) == pytest.approx((0.5, 0.8))
    clock.merged(4)
    assert clock.step_s == pytest.approx(0.5), "all steps of the second window count"


def test_costs_are_extrapolated_from_some_parameters() -> None:
    many = [nn.Parameter(torch.zeros(1000, 500)) for _ in range(12)]
    assert costs_of(many, ["none", "int8"], 2, 2)["int8"].sent == pytest.approx(6e6 * (1 + 4 / 256), rel=1e-3)


def test_the_first_steps_by_a_new_way_do_not_make_it_slow() -> None:
    """They do much for the first time; a way that was in use before is as slow as measured."""
    way = Way("int8", 8)  # 0.5 s of computing, and 0.28 s in 8 steps
    new = Measured(0.5, 0.5, 0.7, 60 * MBIT, is_new=True)
    assert decide(new, COSTS, WAYS, way, {}).choice == way
    assert decide(new._replace(is_new=False), COSTS, WAYS, way, {}).choice != way


def probed(mbit: float, *stalls: float, former: float = 0.0, replicas: int = 2) -> tuple[float, int]:
    """What a link of this speed is measured to have, and by how many exchanges; the last ones stall for so long."""
    each, count, stalling = 4 * (replicas - 1), 0, list(stalls)
    probe = Probe(each, former * MBIT)
    while not probe.is_over:
        assert count < len(SIZES) + 3
        seconds = each * probe.size / (mbit * MBIT)
        if seconds >= LONG_S and stalling:
            seconds += stalling.pop(0)
        probe.took(seconds, seconds)
        count += 1
    return probe.link / MBIT, count


def test_a_host_that_stalls_once_is_no_slow_link() -> None:
    """A quota of 0.75 core holds a host back for 25 ms at a time; an exchange of 50 ms then says 6.7 Mbit/s of 10."""
    for stalls in ((0.025, 0.0, 0.0), (0.0, 0.025, 0.0), (0.0, 0.0, 0.5)):
        assert probed(10, *stalls)[0] == pytest.approx(10)
    assert probed(10, 0.025, 0.025, 0.025)[0] > 8, "even if all are held back"
    assert probed(10, *(-0.02, 0.0, 0.0))[0] == pytest.approx(10), "nor is a burst a fast one"


def test_a_slow_link_is_not_probed_for_long() -> None:
    """Once it is known, few exchanges are too short; on a very slow one the first exchange is the only one."""
    assert probed(0.2) == (pytest.approx(0.2), 1)
    assert probed(10)[1] == 5 and probed(10, former=10)[1] == 5
    assert probed(1000)[1] == 10 and probed(1000, former=1000)[1] == 6
    found, count = probed(10, former=1000)
    assert found == pytest.approx(10) and count <= 6, "it has become slower: one exchange is too long"
    assert probed(1000, former=10)[0] == pytest.approx(1000, rel=0.01)
    assert probed(1e6) == (pytest.approx(1e6), len(SIZES) - 1 + 3), "faster than can be measured"


def checked(before: float, mbit: float, *stalls: float) -> tuple[bool, float]:
    """Whether a link is found to be as it was, and how long that takes; its first long exchanges stall for so long."""
    probe, stalling, spent = Probe(4, 0.0), list(stalls), 0.0
    while not probe.is_over:
        probe.took(*2 * [4 * probe.size / (before * MBIT)])
    check = Check(probe.seen)
    while not check.is_over:
        seconds = 4 * check.size / (mbit * MBIT)
        if seconds >= measuring.CHECK_S and stalling:
            seconds += stalling.pop(0)
        check.took(seconds, seconds)
        spent += seconds
    return check.holds, spent


@pytest.mark.parametrize("mbit", [10, 20, 50, 100, 300, 1000])
def test_a_link_that_is_as_it_was_takes_little_of_the_time(mbit: float) -> None:
    """With steps of 0.1 s there is time for it every 20 steps; and it still notices what has changed."""
    holds, spent = checked(mbit, mbit)
    assert holds and adaptive.SPARE * spent <= adaptive.EVERY * 0.1
    assert checked(mbit, mbit, 0.025)[0], "a host that was held back once"
    assert checked(mbit, 1.2 * mbit)[0]
    for times in (0.01, 0.1, 0.5, 2, 100):
        assert not checked(mbit, times * mbit)[0]


def test_a_link_that_fell_is_not_waited_for() -> None:
    """No exchange is as long as those of the link as it was."""
    assert checked(1000, 20) == (False, pytest.approx(0.105, rel=0.1))
    assert checked(1000, 1)[1] < 3


def test_a_very_fast_or_slow_link_is_checked_by_what_there_is() -> None:
    assert checked(1e6, 1e6)[0] and checked(0.2, 0.2) == (True, pytest.approx(1.31, rel=0.1))
    assert not checked(0.2, 0.02)[0] and not checked(1e6, 1e3)[0]

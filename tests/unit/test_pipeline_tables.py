"""Tables of pipeline schedules: what they hold, what their actions need, how long they take, which are refused."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise, product
from pathlib import Path

import pytest

from cordee.core.errors import PlanError
from cordee.split.schedules import SCHEDULES, table_of
from cordee.split.schedules.check import check, in_order
from cordee.split.schedules.costs import Boundary, Costs, StageCosts
from cordee.split.schedules.gpipe import gpipe
from cordee.split.schedules.interleaved import interleaved
from cordee.split.schedules.one_f_one_b import one_f_one_b
from cordee.split.schedules.simulate import Timeline, simulate
from cordee.split.schedules.table import Action, Table, parse
from cordee.split.schedules.zero_bubble import zero_bubble
from harness import DEADLINE_S

SIZES = [(ranks, micros) for ranks in (1, 2, 3, 4, 7) for micros in (1, 2, 3, 4, 5, 8, 13, 24)]
ALL = [(name, ranks, micros, 1) for name in SCHEDULES for ranks, micros in SIZES]
ALL += [("interleaved", ranks, micros, chunks) for (ranks, micros), chunks in product(SIZES, (2, 3, 5))]


def timed(table: Table, forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0) -> Timeline:
    return simulate(table, Costs.equal(table.stages, forward, inputs, weights))


# ------------------------------------------------------------- what every schedule has


@pytest.mark.parametrize(("name", "ranks", "micros", "chunks"), ALL)
def test_every_schedule_can_run(name: str, ranks: int, micros: int, chunks: int) -> None:
    table = table_of(name, ranks, micros, chunks)
    check(table)
    assert (table.ranks, table.stages, table.micros) == (ranks, ranks * chunks, micros)
    kinds = "FIW" if name == "zero-bubble" else "FB"
    assert Counter(action for row in table.rows for action in row) == Counter(
        Action(*one) for one in product(kinds, range(ranks * chunks), range(micros))
    )
    assert parse(str(table)) == table and hash(parse(str(table))) == hash(table)


@pytest.mark.parametrize(("name", "ranks", "micros", "chunks"), ALL[::3])
def test_a_timeline_keeps_the_order_and_the_needs(name: str, ranks: int, micros: int, chunks: int) -> None:
    """With costs drawn at random: nothing begins before what it needs, and no rank does two things at once."""
    draw = random.Random(f"{name} {ranks} {micros} {chunks}")
    table = table_of(name, ranks, micros, chunks)
    stages = tuple(StageCosts(*(draw.uniform(0.1, 3) for _ in range(4))) for _ in range(table.stages))
    boundaries = tuple(Boundary(draw.randint(0, 9), draw.random(), draw.uniform(1, 9)) for _ in range(table.stages - 1))
    speeds = tuple(draw.uniform(0.3, 2) for _ in range(ranks))
    timeline = simulate(table, Costs(stages, boundaries, speeds))
    spans = {span.action: span for row in timeline.spans for span in row}
    for rank, row in enumerate(timeline.spans):
        assert tuple(span.action for span in row) == table.rows[rank]
        assert all(before.end <= after.begin for before, after in pairwise(row))
    for action, span in spans.items():
        cost = stages[action.stage].of(action.kind) / speeds[action.stage % ranks]
        assert span.end - span.begin == pytest.approx(cost)
        for need in table.needs(action):
            boundary = boundaries[min(need.stage, action.stage)] if need.stage != action.stage and ranks > 1 else None
            transfer = boundary.bytes_ / boundary.bytes_per_ms + boundary.latency_ms if boundary else 0.0
            assert span.begin >= spans[need].end + transfer - 1e-9
    assert timeline.step_ms == max(span.end for span in spans.values())
    for rank, share in enumerate(timeline.bubble):
        busy = sum(costs.end - costs.begin for costs in timeline.spans[rank])
        assert share == pytest.approx(1 - busy / timeline.step_ms, abs=1e-12)


def test_what_an_action_needs() -> None:
    table = interleaved(2, 2, 2)
    for action, needs in {
        "F0.1": "",
        "F3.1": "F2.1",
        "B3.0": "F3.0",
        "B1.0": "F1.0 B2.0",
    }.items():
        assert " ".join(map(str, table.needs(one(action)))) == needs
    split = zero_bubble(2, 1)
    assert split.needs(one("I0.0")) == (one("F0.0"), one("I1.0"))
    assert split.needs(one("W0.0")) == (one("I0.0"),)
    mixed = parse("F0.0 B0.0\nF1.0 I1.0 W1.0")  # the whole backward after one in two
    check(mixed)
    assert mixed.needs(one("B0.0")) == (one("F0.0"), one("I1.0"))


def one(text: str) -> Action:
    return parse(text).rows[0][0]


@pytest.mark.parametrize(("name", "ranks", "micros", "chunks"), ALL[::5])
def test_messages_go_between_neighbouring_stages(name: str, ranks: int, micros: int, chunks: int) -> None:
    table = table_of(name, ranks, micros, chunks)
    actions = [action for row in table.rows for action in row]
    sent = [(action, target) for action in actions if (target := table.goes_to(action)) is not None]
    assert {target: source for source, target in sent} == {
        action: source for action in actions if (source := table.arrives_from(action)) is not None
    }
    assert len(sent) == (2 * (table.stages - 1) * micros if ranks > 1 else 0)
    for source, target in sent:
        assert target.stage - source.stage == (1 if source.kind == "F" else -1) and source.micro == target.micro


def test_torch_is_not_imported() -> None:
    code = "import sys; from cordee.split.schedules import forecast, simulate; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


# ------------------------------------------------------------- known times


@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_step_time_of_gpipe_and_1f1b(ranks: int, micros: int) -> None:
    for table in (gpipe(ranks, micros), one_f_one_b(ranks, micros)):
        timeline = timed(table)
        assert timeline.step_ms == 3 * (micros + ranks - 1)
        assert timeline.bubble == pytest.approx([(ranks - 1) / (micros + ranks - 1)] * ranks)


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_step_time_of_interleaved(ranks: int, micros: int, chunks: int) -> None:
    """The formula holds wherever there is a micro-batch per rank, also if they are no multiple of the ranks."""
    timeline = timed(interleaved(ranks, micros, chunks))
    if micros >= ranks:
        assert timeline.step_ms == 3 * (chunks * micros + ranks - 1)
        assert timeline.bubble == pytest.approx([(ranks - 1) / (chunks * micros + ranks - 1)] * ranks)
    else:  # every group waits for the way through all ranks
        assert timeline.step_ms == 3 * (chunks * ranks + micros - 1)
        assert timeline.step_ms <= chunks * timed(one_f_one_b(ranks, micros)).step_ms


@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_step_time_of_zero_bubble(ranks: int, micros: int) -> None:
    step_ms = timed(zero_bubble(ranks, micros)).step_ms
    assert step_ms == max(3 * micros + ranks - 1, 2 * micros + 2 * ranks - 1)
    if ranks > 1:
        assert step_ms < timed(one_f_one_b(ranks, micros)).step_ms


@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_what_is_held(ranks: int, micros: int) -> None:
    assert timed(gpipe(ranks, micros)).held == (micros,) * ranks
    assert timed(one_f_one_b(ranks, micros)).held == tuple(min(micros, ranks - rank) for rank in range(ranks))
    assert timed(zero_bubble(ranks, micros)).held == (min(micros, ranks),) * ranks
    for chunks in (2, 3):
        group = micros if micros < ranks else -(-micros // (micros // ranks))
        most = [(chunks - 1) * group + 2 * (ranks - 1 - rank) + 1 for rank in range(ranks)]
        assert timed(interleaved(ranks, micros, chunks)).held == tuple(min(one, chunks * micros) for one in most)


def test_bytes_held_are_those_of_each_stage() -> None:
    costs = Costs(tuple(StageCosts(1, 1, 1, held_bytes=size) for size in (100, 10, 1000, 1)))
    timeline = simulate(parse("F0.0 F2.0 B2.0 B0.0\nF1.0 F3.0 B3.0 B1.0"), costs)
    assert timeline.held_bytes == (1100, 11) and timeline.held == (2, 2)


def test_one_chunk_is_1f1b() -> None:
    assert interleaved(4, 6, 1) == one_f_one_b(4, 6)


# ------------------------------------------------------------- costs


def test_transfers_and_speeds_by_hand() -> None:
    """Two stages on two ranks, one micro-batch: every part of the time is known."""
    costs = Costs((StageCosts(1, 2, 3), StageCosts(4, 1, 1, backward_ms=1.5)), (Boundary(60, 0.5, 20),), (1.0, 0.5))
    timeline = simulate(one_f_one_b(2, 1), costs)
    assert [tuple(span[1:]) for span in timeline.spans[0]] == [(0, 1), (19, 24)]
    assert [tuple(span[1:]) for span in timeline.spans[1]] == [(4.5, 12.5), (12.5, 15.5)]
    assert timeline.step_ms == 24 and timeline.bubble == pytest.approx([1 - 6 / 24, 1 - 11 / 24])


def test_messages_over_one_link_follow_each_other() -> None:
    costs = Costs((StageCosts(1, 1, 0),) * 2, (Boundary(10, 0.0, 1),))
    timeline = simulate(gpipe(2, 3), costs)
    assert [span.begin for span in timeline.spans[1][:3]] == [11, 21, 31]
    # Gradients go the other way, and do not wait for activations. 32 is the end of the last forward.
    assert [span.begin for span in timeline.spans[0][3:]] == [43, 53, 63]


@pytest.mark.parametrize(
    ("message_ms", "expected"),
    [(0.0, (33, 33, 28.5, 27)), (0.5, (36, 41, 35.5, 33)), (1.0, (39, 49, 46, 41)), (2.0, (45, 65, 70, 57))],
)
def test_slow_messages_favour_many_forwards_in_flight(message_ms: float, expected: tuple[float, ...]) -> None:
    """The numbers of the table in docs/explanation/pipelines.md."""
    for (name, chunks), step_ms in zip(
        {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 1}.items(), expected, strict=True
    ):
        table = table_of(name, 4, 8, chunks)
        stages = Costs.equal(table.stages, *[1 / chunks] * 3).stages
        boundaries = (Boundary(latency_ms=message_ms),) * (table.stages - 1)
        assert simulate(table, Costs(stages, boundaries)).step_ms == pytest.approx(step_ms)


def test_wrong_costs_are_refused() -> None:
    table = one_f_one_b(2, 1)
    for costs in (Costs.equal(3), Costs(Costs.equal(2).stages, (Boundary(),) * 2)):
        with pytest.raises(ValueError, match="but the table has"):
            simulate(table, costs)
    with pytest.raises(ValueError, match="above 0"):
        simulate(table, Costs(Costs.equal(2).stages, speeds=(1.0, 0.0)))


# ------------------------------------------------------------- tables that are refused


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("F0.0 B0.0\nB1.0 F1.0", "deadlock: rank 1 waits at B1.0 for F1.0, which rank 1 executes after B1.0"),
        (
            "F0.0 B0.0 F0.1 B0.1\nF1.0 F1.1 B1.0 B1.1",
            "rank 0 waits at B0.0 for B1.0, which rank 1 executes after F1.1; rank 1 waits at F1.1 for F0.1, which "
            "rank 0 executes after B0.0",
        ),
        ("F0.0 W0.0 I0.0", "rank 0 waits at W0.0 for I0.0, which rank 0 executes after W0.0"),
        ("F0.0 B0.0 F0.0", "F0.0 occurs 2 times"),
        ("F0.0 F0.1 B0.0", "stage 0 computes F of micro-batch 1"),
        ("F0.0 B0.0\nF1.1 B1.1", "stage 0 computes nothing of micro-batch 1"),
        ("F0.0 B0.0 I0.0 W0.0", "stage 0 computes F, B, I, W of micro-batch 0"),
        ("F0.0 I0.0", "computes F, I of"),
        ("F0.0 F1.0 B1.0 B0.0\nF2.0 B2.0", "F1.0 stands in the row of rank 0, but of 2 ranks stage 1 lies on rank 1"),
        ("F999999.999999 B999999.999999", "stage 0 computes nothing of micro-batch 0"),
    ],
)
def test_a_table_that_cannot_run_is_refused(text: str, reason: str) -> None:
    table = parse(text)
    with pytest.raises(PlanError) as raised:
        check(table)
    assert reason in str(raised.value)
    with pytest.raises(PlanError):
        simulate(table, Costs.equal(1))


def test_a_rank_without_a_stage_is_refused() -> None:
    with pytest.raises(PlanError, match="row of rank 1 is empty"):
        check(Table((parse("F0.0 B0.0").rows[0], ())))


def test_deadlocks_are_found_exactly() -> None:
    """Rows in random order: refused if and only if no order of all actions fits them and the needs."""
    draw, verdicts = random.Random(1), Counter[bool]()
    for _ in range(400):
        table = table_of(draw.choice(list(SCHEDULES)), draw.randint(1, 3), draw.randint(1, 3))
        rows = [list(row) for row in table.rows]
        for _ in range(draw.randint(0, 3)):
            row = draw.choice(rows)
            first, second = draw.randrange(len(row)), draw.randrange(len(row))
            row[first], row[second] = row[second], row[first]
        table = Table(tuple(map(tuple, rows)))
        verdicts[acyclic(table)] += 1
        try:
            check(table)
        except PlanError as error:
            assert "deadlock" in str(error) and not acyclic(table)
        else:
            assert acyclic(table) and len(list(in_order(table))) == sum(map(len, rows))
    assert min(verdicts.values()) > 50, "both occur"


def acyclic(table: Table) -> bool:
    """By taking away what nothing open comes before, until nothing is left: not how the table is executed."""
    before = {action: set(table.needs(action)) for row in table.rows for action in row}
    for row in table.rows:
        for first, second in pairwise(row):
            before[second].add(first)
    while free := [action for action, needs in before.items() if not needs & before.keys()]:
        for action in free:
            del before[action]
    return not before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("F0.0 X0.1", "line 1: 'X0.1' is not an action"),
        ("# first\n\nF0.0 F0", "line 3: 'F0' is not"),
        ("F0.-1", "'F0.-1' is not"),
        ("F0.1234567", "is not an action"),
        ("F٣.0", "is not an action"),
        ("x" * 1000, "'" + "x" * 40 + "...'"),
        ("  # nothing\n", "no action"),
    ],
)
def test_text_that_is_no_table(text: str, reason: str) -> None:
    with pytest.raises(PlanError) as raised:
        parse(text)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("1f1d", 2, 2), "Did you mean '1f1b'"),
        (("gpipe", 2, 0), "0 micro-batches; expected at least 1"),
        (("gpipe", 2, 2, 2), "one stage per rank, but 2 were given; use interleaved"),
    ],
)
def test_a_schedule_that_makes_no_sense(given: tuple[str, int, int], reason: str) -> None:
    with pytest.raises(PlanError) as raised:
        table_of(*given)
    assert reason in str(raised.value)


# ------------------------------------------------------------- the drawing


def test_drawing() -> None:
    assert str(timed(one_f_one_b(2, 2))).splitlines() == [
        "rank 0 F0>F1>......B0<<<<...B1<<<<",
        "rank 1 ...F0>B0<<<<F1>B1<<<<......",
    ]
    assert str(timed(zero_bubble(2, 2))).splitlines() == [
        "rank 0 F0>F1>...I0<W0=I1<W1=",
        "rank 1 ...F0>I0<F1>I1<W0=W1=",
    ]
    assert "F2.0>" in str(timed(interleaved(2, 2, 2))) and "F2.0" not in str(timed(gpipe(3, 1)))


def test_a_drawing_is_never_wider_than_asked() -> None:
    stages = (StageCosts(100, 1e-6, 3), StageCosts(0, 0, 0))
    assert max(map(len, str(simulate(zero_bubble(2, 30), Costs(stages))).splitlines())) == 200
    free = str(simulate(one_f_one_b(2, 1), Costs.equal(2, 0, 0, 0)))
    assert free.splitlines() == ["rank 0 ", "rank 1 "]


def test_the_page_shows_these_drawings() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/pipelines.md").read_text(encoding="utf-8")
    for table in (gpipe(3, 4), one_f_one_b(3, 4), interleaved(2, 3, 2), zero_bubble(3, 4)):
        assert f"```text\n{timed(table)}\n```" in page
    assert f"```text\n{one_f_one_b(2, 2)}\n```" in page

"""The audit: a sound record is proven, and each way in which a record can be wrong is found, with its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cordee.cli import main
from cordee.core.errors import AuditError
from cordee.feed.order import Order, chain, delivered
from cordee.feed.share import Share
from cordee.watch.audit.prove import Audit, audit
from records import Event, end, event, made, start, write

ORDER = Order(60, 13, seed=3)
"""Five steps an epoch, of which the last has 8 samples."""
STEPS = 8
EQUAL = [[0, "equal", [], 0]]


def chains(steps: Sequence[int]) -> list[tuple[str, int]]:
    """The chain and the samples after each of these steps, done in this order: computed as a worker does."""
    found, sha, samples = [("", 0)], "", 0
    for step in steps:
        ids = ORDER.ids(*divmod(step, ORDER.steps))
        sha, samples = chain(sha, step, delivered(ids, range(len(ids))), len(ids)), samples + len(ids)
        found.append((sha, samples))
    return found


CHAINS = chains(range(STEPS))


def position(at: float, worker: int, why: str, step: int, generation: int = 1, **more: Any) -> Event:
    sha, samples = CHAINS[step]
    members = [0, 1, 2] if generation == 1 else [0, 2]
    named = {"worker": worker, "why": why, "step": step, "generation": generation, "samples": samples}
    cut = {"members": members, "owners": members, "shares": EQUAL, "part": 0, "order_sha256": sha}
    return event("position", at, **{**named, **cut, "params_sha256": "ab" if why == "end" else "", **more})


def step(number: int) -> Event:
    size = ORDER.size((number - 1) % ORDER.steps)
    return event("step", 1.5 + number, step=number, epoch=(number - 1) // ORDER.steps, loss=1.0, samples=size, ms=1.0)


def sound() -> list[Event]:
    """Three workers, of which the second is lost after step 4."""
    return [
        *start(0, 3, order=ORDER.describe(), steps_per_epoch=ORDER.steps),
        *(position(1.5, worker, "start", 0) for worker in range(3)),
        *map(step, range(1, 5)),
        event("failure", 5.6, worker=1, host="here", reason="killed", left=2),
        event("regroup", 5.7, generation=2, workers=[0, 2], ms=1.0),
        *(position(5.8, worker, "regroup", 4, 2) for worker in (2, 0)),
        *map(step, range(5, STEPS + 1)),
        *(position(20, worker, "end", STEPS, 2) for worker in (0, 2)),
        end(21),
    ]


def audited(record: Sequence[Event]) -> Audit:
    return audit(map(made, record))


def changed(record: list[Event], index: int, **fields: Any) -> list[Event]:
    return [*record[:index], record[index] | fields, *record[index + 1 :]][: len(record)]


def places(record: Sequence[Event], kind: str, **fields: Any) -> list[int]:
    """Where the records of a kind stand that have these fields."""
    return [at for at, one in enumerate(record) if one["event"] == kind and fields.items() <= one.items()]


def test_a_sound_record_is_proven() -> None:
    found = audited(sound())
    assert (found.findings, found.missing, found.unaudited) == ((), (), ())
    assert found.proven == (
        "8 steps, each applied once and in order on 2 workers",
        "99 samples in 2 epochs, each sample once per epoch",
        "the same parameters, bit by bit, on 2 replicas",
    )


def with_end(record: list[Event], **fields: Any) -> list[Event]:
    return changed(record, places(record, "position", worker=2, why="end")[0], **fields)


def twice(record: list[Event]) -> list[Event]:
    """Worker 2 entered step 6 twice."""
    sha, samples = chains([0, 1, 2, 3, 4, 5, 5, 6, 7])[-1]
    return with_end(record, order_sha256=sha, samples=samples)


def one_lost(record: list[Event]) -> list[Event]:
    """One sample of step 7 reached no worker: so all of them say."""
    sha, samples = CHAINS[6]
    ids = ORDER.ids(1, 1)
    sha, samples = chain(sha, 6, delivered(ids[1:], range(1, len(ids))), len(ids) - 1), samples + len(ids) - 1
    ids = ORDER.ids(1, 2)
    sha, samples = chain(sha, 7, delivered(ids, range(len(ids))), len(ids)), samples + len(ids)
    for at in places(record, "position", why="end"):
        record = changed(record, at, order_sha256=sha, samples=samples)
    return record


def exchanged(record: list[Event]) -> list[Event]:
    """Steps 6 and 7 were done in the wrong order by worker 2."""
    return with_end(record, order_sha256=chains([0, 1, 2, 3, 4, 6, 5, 7])[-1][0])


def without(kind: str, **fields: Any) -> Callable[[list[Event]], list[Event]]:
    def take_out(record: list[Event]) -> list[Event]:
        at = places(record, kind, **fields)[0]
        return record[:at] + record[at + 1 :]

    return take_out


def repeated_step(record: list[Event]) -> list[Event]:
    at = places(record, "step", step=6)[0]
    return [*record[: at + 1], record[at], *record[at + 1 :]]


def set_in(kind: str, at: dict[str, Any], **fields: Any) -> Callable[[list[Event]], list[Event]]:
    return lambda record: changed(record, places(record, kind, **at)[0], **fields)


def begun_later(record: list[Event]) -> list[Event]:
    """Worker 2 went on after step 5, the other one after step 4: there is a hole."""
    sha, samples = CHAINS[5]
    at = places(record, "position", worker=2, why="regroup")[0]
    return changed(record, at, step=5, order_sha256=sha, samples=samples)


@pytest.mark.parametrize(
    ("doctor", "at", "text"),
    [
        (twice, 8, "worker 2 has lost, repeated or exchanged samples from step 5 to step 8: 112 samples in all, where"),
        (
            one_lost,
            8,
            "worker 0 has lost, repeated or exchanged samples from step 5 to step 8: 98 samples in all, where",
        ),
        (exchanged, 8, "as many samples as the order has, but others, or in other places"),
        (repeated_step, 6, "step 6 is on record twice"),
        (without("step", step=6), 6, "step 6 is not on record"),
        (set_in("step", {"step": 6}, samples=12), 6, "step 6 has 12 samples on record: the order has 13"),
        (set_in("position", {"worker": 2, "why": "end"}, params_sha256="cd"), 8, "the parameters of worker 2 are not"),
        (without("position", worker=2, why="end"), 8, "worker 2 was there at the end, and left no position"),
        (begun_later, 4, "the workers of generation 2 began after different steps: 4 and 5"),
        (
            set_in("position", {"worker": 2, "why": "regroup"}, shares=[[0, "proportional", [1, 1, 2], 0]]),
            4,
            "the workers of generation 2 cut steps by different shares",
        ),
        (set_in("position", {"worker": 2, "generation": 2}, members=[0, 1, 2]), 4, "worker 2 sees other members"),
    ],
)
def test_what_is_wrong_is_found(doctor: Callable[[list[Event]], list[Event]], at: int, text: str) -> None:
    found = audited(doctor(sound()))
    assert [one.step for one in found.findings if text in one.text] == [at], found.findings
    assert found.proven == ()


def test_shares_that_overlap_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Share, "positions", lambda self, size, workers, index, key: range(size // 2))
    wrong = audited(sound()).findings
    assert [one.step for one in wrong] == [0, 4] and all("each place of a batch once" in one.text for one in wrong)


def test_an_order_of_another_seed_is_not_that_of_the_record() -> None:
    record = sound()
    job = places(record, "job")[0]
    found = audited(changed(record, job, order={**ORDER.describe(), "seed": 4}))
    assert [one.step for one in found.findings] == [4, 4]


def test_a_resumed_run_is_proven_by_its_last_start() -> None:
    """The first start was killed after step 6; the second goes on with the checkpoint of step 4."""
    first = sound()[: places(sound(), "step", step=6)[0] + 1]
    about = {"order": ORDER.describe(), "steps_per_epoch": ORDER.steps}
    second = [
        *start(30, 1, resume=True, steps=4, **about),
        position(31, 0, "start", 4, members=[0], owners=[0]),
        *map(step, range(5, STEPS + 1)),
        position(40, 0, "end", STEPS, members=[0], owners=[0]),
        end(41),
    ]
    assert audited(first).missing and not audited(first).proven
    found = audited([*first, *second])
    assert (found.findings, found.missing) == ((), ()) and len(found.proven) == 3
    again = audited([*first, *changed(second, places(second, "job")[0], steps=3)])
    assert [one.text for one in again.findings] == ["step 4 is not on record"]


def test_a_launcher_that_was_killed_at_the_very_end_is_no_finding() -> None:
    """Worker 2 had left its last position already; the last steps and the position of worker 0 were not written."""
    whole = sound()
    lost = {places(whole, "step", step=STEPS)[0], places(whole, "position", worker=0, why="end")[0], len(whole) - 1}
    first = [one for at, one in enumerate(whole) if at not in lost]
    about = {"order": ORDER.describe(), "steps_per_epoch": ORDER.steps}
    again = [position(31, worker, "end", STEPS, members=[0, 2], owners=[0, 2]) for worker in (0, 2)]
    second = [*start(30, 2, resume=True, steps=STEPS, **about), *again, end(41)]
    found = audited([*first, *second])
    assert (found.findings, found.missing) == ((), ()) and found.proven
    assert audited([*first, end(29), *second]).findings
    # Those workers that were left may be killed then too.
    found = audited([*first, end(29, code=21), *second])
    assert (found.findings, found.missing) == ((), ()) and found.proven
    assert audited([*first, end(29, code=21)]).missing


def window(items: list[tuple[int, int, int]], first: int = 1) -> Event:
    return event("window", 3, first=first, last=first + 1, workers=[0, 1], items=items, behind=False)


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([(0, 1, 0), (1, 1, 1), (0, 2, 0), (0, 2, 1)], ""),
        ([(0, 1, 0), (1, 1, 1), (0, 2, 0), (0, 2, 1), (1, 2, 1)], "part 1 of step 2 counts twice, of workers 0 and 1"),
        ([(0, 1, 0), (1, 1, 1), (0, 2, 0)], "part 1 of step 2 was not computed"),
        ([(0, 1, 0), (1, 1, 1), (0, 2, 0), (0, 2, 1), (0, 2, 2)], "parts that it is not cut into"),
    ],
)
def test_each_part_of_a_window_counts_once(items: list[tuple[int, int, int]], text: str) -> None:
    found = audited([*start(0, 2), window(items)])
    assert [one.text for one in found.findings if text in one.text] == [one.text for one in found.findings]
    assert bool(found.findings) == bool(text)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ((0, 1, 2, 3), ""),
        ((1, 2, 3), "the window of step 1 is not on record"),
        ((0, 2, 3), "the window of step 3 is not on record"),
        ((0, 1, 2), "the window of step 7 is not on record"),
        ((0, 1, 1, 2, 3), "step 3 is in two windows"),
    ],
)
def test_each_window_is_on_record_once(kept: Sequence[int], text: str) -> None:
    parts = [(worker, number, worker) for number in range(1, STEPS + 1) for worker in range(2)]
    windows = [window(parts[4 * at : 4 * at + 4], 2 * at + 1) for at in range(4)]
    record = [
        *start(0, 2, order=ORDER.describe(), steps_per_epoch=ORDER.steps),
        *(windows[at] for at in kept),
        *map(step, range(1, STEPS + 1)),
        *(position(20, worker, "end", STEPS, members=[0, 1], owners=[0, 1]) for worker in range(2)),
        end(21),
    ]
    assert [one.text for one in audited(record).findings] == ([text] if text else [])


def test_a_replica_alone_has_no_windows() -> None:
    """The other one was lost after two steps."""
    record = [
        *start(0, 2, order=ORDER.describe(), steps_per_epoch=ORDER.steps),
        *(position(1.5, worker, "start", 0, members=[0, 1], owners=[0, 1]) for worker in range(2)),
        window([(0, 1, 0), (1, 1, 1), (0, 2, 0), (1, 2, 1)]),
        *map(step, range(1, STEPS + 1)),
        event("failure", 5.6, worker=1, host="here", reason="killed", left=1),
        event("regroup", 5.7, generation=2, workers=[0], ms=1.0),
        position(5.8, 0, "regroup", 2, 2, members=[0], owners=[0]),
        position(20, 0, "end", STEPS, 2, members=[0], owners=[0]),
        end(21),
    ]
    assert audited(record).findings == ()


def test_a_part_is_computed_again_only_if_its_worker_was_lost() -> None:
    whole = [(0, 1, 0), (1, 1, 1), (0, 2, 0), (1, 2, 1)]
    later = [(0, 3, 0), (0, 3, 1), (0, 4, 0), (0, 4, 1), (0, 2, 1)]
    record = [*start(0, 2), window(whole), window(later, 3)]
    assert [one.step for one in audited(record).findings] == [2]
    lost = event("failure", 4, worker=1, host="here", reason="killed", left=1)
    assert audited([*record, lost]).findings == ()


def test_a_loop_of_the_users_own_is_compared_between_its_workers() -> None:
    record = [*start(0, 2)[:-1]]
    ends = [position(9, worker, "end", 8, members=[0, 1], params_sha256="") for worker in range(2)]
    found = audited([*record, *ends, end(10)])
    assert found.proven == ("99 samples in 8 steps, the same in the same order on 2 workers",)
    assert found.unaudited
    found = audited([*record, *changed(ends, 1, order_sha256="cd"), end(10)])
    assert [one.text for one in found.findings] == ["worker 1 ended after other steps than worker 0"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main._run(["audit", str(write(tmp_path / "sound", sound()))]) == 0
    assert capsys.readouterr().out.startswith("proven: 8 steps, each applied once")
    assert main._run(["audit", str(write(tmp_path / "wrong", repeated_step(sound())))]) == AuditError.code
    told = capsys.readouterr()
    assert told.out == "wrong, step 6: step 6 is on record twice\n" and "1 finding, the first at step 6" in told.err
    assert main._run(["audit", str(write(tmp_path / "open", sound()[:9]))]) == AuditError.code
    assert "proves nothing yet" in capsys.readouterr().err
    old = changed(sound(), places(sound(), "job")[0], order={})
    assert main._run(["audit", str(write(tmp_path / "old", old))]) == AuditError.code
    assert "the record is of a former version" in capsys.readouterr().err


def pushes(version: int, *pushed: tuple[int, int, int]) -> Event:
    return event("pushes", 3, worker=0, version=version, pushes=[(*one, 0) for one in pushed])


def test_steps_that_one_worker_computes_alone_are_updates_too() -> None:
    """They leave no window. Pushes after the last window on record belong to one whose launcher was killed."""
    first = pushes(4, (1, 0, 1), (1, 1, 2), (2, 0, 3), (2, 1, 4))
    last = pushes(10, (5, 0, 7), (5, 1, 8), (6, 0, 9), (6, 1, 10))
    windows = [window([(one, step, one) for step in (at, at + 1) for one in (0, 1)], at) for at in (1, 5)]
    cut_off = pushes(11, (7, 0, 11))
    assert audited([*start(0, 2), first, windows[0], last, windows[1], cut_off]).findings == ()
    (finding,) = audited([*start(0, 2), first, windows[0], pushes(11, (6, 1, 11)), windows[1]]).findings
    assert finding.text == "parameter servers made 11 updates for 10 parts of steps"


def test_a_launcher_that_is_killed_at_the_end_may_have_written_down_a_part_of_it() -> None:
    """The last step, and the end of one worker, were lost with it: the checkpoint has them."""
    *record, end_of_0, _, _ = sound()
    assert end_of_0["why"] == "end"
    killed = [one for one in record if one.get("step") != STEPS or one["event"] != "step"] + [end_of_0]
    found = audited(killed)
    assert found.findings == () and "its end" in found.missing[0]
    assert [one.step for one in audited([*killed, end(21)]).findings][-1] == STEPS

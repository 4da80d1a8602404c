"""The ledger of committed samples, and digests that add up as small numbers."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from cordee.core.events import TimesEvent
from cordee.core.record import Record
from cordee.feed.feeder import Lookahead
from cordee.feed.order import Order, delivered
from cordee.group.meter import Reading
from cordee.group.team import Team
from cordee.train.ledger import Committed, Ledger
from cordee.train.reporter import Over, Reporter, times_of

ORDER = Order(1003, 101, seed=3)


def enter(ledger: Ledger, step: int, ids: np.ndarray, positions: object = None) -> None:
    places = range(len(ids)) if positions is None else positions
    commit(ledger, step, len(ids), delivered(ids, places))  # type: ignore[arg-type]


def commit(ledger: Ledger, step: int, count: int, digest: int) -> None:
    expected = (ORDER.size(step), Lookahead(ORDER).digest(0, step))
    ledger.enter((0, step, ORDER.steps), count, digest, expected)


def test_records_add_up_over_thousands_of_replicas() -> None:
    draw = random.Random(0)
    digests = [draw.getrandbits(64) for _ in range(5_000)]
    records = [Record(1.0, 2.0, 0, 0, 0, 0, 0, 0, samples=3, digest=digest) for digest in digests]
    sums = np.sum([np.asarray(one.numbers(), dtype=np.float32) for one in records], axis=0, dtype=np.float32)
    summed = Record.summed(sums.tolist())
    assert (summed.digest, summed.samples, summed.mean_loss) == (sum(digests) % 2**64, 15_000, 0.5)


@pytest.mark.parametrize("cuts", [(), (50,), (0, 101), (1, 2, 3, 77)])
def test_however_a_batch_is_cut_the_ledger_is_the_same(cuts: tuple[int, ...]) -> None:
    whole, cut = Ledger(), Ledger()
    ids = ORDER.ids(0, 0)
    enter(whole, 0, ids)
    edges = [0, *cuts, 101]
    parts = [range(start, stop) for start, stop in pairwise(edges)]
    digest = sum(delivered(ids[part.start : part.stop], part) for part in parts) % 2**64
    commit(cut, 0, 101, digest)
    assert cut == whole and whole.samples == 101 and (whole.lost, whole.repeated) == (0, 0)


@pytest.mark.parametrize(
    ("change", "lost", "repeated"),
    [
        (lambda ids: ids[:-2], 2, 0),
        (lambda ids: np.append(ids, ids[:3]), 0, 3),
        (lambda ids: np.append(ids[:-1], ids[0]), 1, 1),
        (lambda ids: ids[::-1], 1, 1),  # in another order: not what was to be delivered
    ],
)
def test_what_was_lost_or_repeated_is_seen(change: object, lost: int, repeated: int) -> None:
    ledger, right = Ledger(), Ledger()
    enter(right, 0, ORDER.ids(0, 0))
    enter(ledger, 0, change(ORDER.ids(0, 0)))  # type: ignore[operator]
    assert (ledger.lost, ledger.repeated) == (lost, repeated)
    assert ledger.order_sha256 != right.order_sha256


def test_the_hash_tells_steps_apart_and_survives_a_checkpoint() -> None:
    one, other = Ledger(), Ledger()
    for step in (0, 1):
        enter(one, step, ORDER.ids(0, step))
    for step in (1, 0):
        enter(other, step, ORDER.ids(0, step))
    assert one.order_sha256 != other.order_sha256
    kept = Ledger(**vars(one))
    enter(one, 2, ORDER.ids(0, 2))
    enter(kept, 2, ORDER.ids(0, 2))
    assert kept == one and one.samples == 303


def committed(number: int) -> Committed:
    return Committed(number, 0, number, 1.0, 1, False, False, False)


def test_the_parts_of_a_step_add_up_to_the_whole() -> None:
    steps = [
        Over(committed(4), 7, 0.015, 0.001, 0.0, late=0.5, clock=100.5, cost=Reading(0.004, 0.0, 0.0, 0, 0)),
        Over(committed(5), 8, 0.035, 0.002, 0.01, late=0.0, clock=101.0, cost=Reading(0.003, 0.001, 0.006, 10, 40)),
    ]
    assert times_of(3, steps) == TimesEvent(
        3,
        first=4,
        data_ms=[1.0, 2.0],
        compute_ms=[10.0, 20.0],
        blocked_ms=[4.0, 3.0],
        waited_ms=[0.0, 1.0],
        samples=[7, 8],
        arrived=[100.0, 101.0],
        callbacks_ms=[0.0, 10.0],
        hidden_ms=[0.0, 6.0],
        sent=[0, 10],
        plain=[0, 40],
    )


def test_steps_that_are_over_together_share_what_was_sent() -> None:
    """Bytes stay whole, and none is lost."""
    cost = Reading(3.0, 1.5, 0.3, 1001, 4001)
    parts = [cost.part(place, 3) for place in range(3)]
    assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx(list(cost))
    assert all(isinstance(part.bytes_sent, int) and part.bytes_sent in (333, 334) for part in parts)


def test_a_session_alone_keeps_nothing_that_is_sent() -> None:
    reporter = Reporter(Team())
    assert reporter.step_ms() == {}
    for number in range(5):
        reporter.start()
        reporter.commit([(committed(number), 1)])
    reporter.send()
    assert reporter._unsent == [] and 0 < reporter.step_ms()["p50"] <= reporter.step_ms()["p99"]

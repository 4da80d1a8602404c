"""Where the bytes of a run went, as its report shows it: nothing is shown that is not on record."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cordee.watch.byte_words import byte_columns, fed, feed_table, traffic
from cordee.watch.page import render
from cordee.watch.summarise import summarise
from cordee.watch.summary import Summary
from cordee.watch.traffic import MOST_DECISIONS, MOST_STALE
from records import T0, end, event, start, step, times, usage, write

MIB = 2**20


def decision(at: float, number: int, before: str, choice: str, measured: float = 50.0, **forecast: float) -> Any:
    numbers = {"compute_ms": 20.0, "link_mbit": 100.0 * number, "measured_ms": measured}
    known = {"none": 90.0, "int8": 30.0, **forecast}
    return event(
        "decision", at, step=number, before=before, choice=choice, reason="because", **numbers, forecast_ms=known
    )


def steps(count: int, workers: int = 2, costs: tuple[float, int, int] = (6.0, MIB, 4 * MIB)) -> list[Any]:
    """Each step takes 100 ms, of which 10 are communication."""
    made: list[Any] = []
    for number in range(count):
        at = 2.1 + number / 10
        made.append(step(at, number + 1))
        parts = (5.0, 85.0, 10.0, 0.0)
        made += [times(at, one, number, [at - 0.01], parts, 12 // workers, costs=costs) for one in range(workers)]
    return made


def shown(summary: Summary) -> str:
    return render(summary, T0 + 10)


def test_bytes_before_and_after_a_codec(tmp_path: Path) -> None:
    used = [usage(3.5, one, 1.0, sent=20 * MIB, bytes_=(5 * MIB * one, 50 * MIB, 0)) for one in range(2)]
    summary = summarise(write(tmp_path, [*start(0.0, 2), *steps(10), *used, end(4.0)]))
    worker = summary.workers[1]
    assert worker.costs == {"hidden": pytest.approx(0.06), "sent": 10 * MIB, "plain": 40 * MIB}
    assert (worker.bytes_sent, worker.bytes_near, worker.bytes_plain) == (20 * MIB, 5 * MIB, 50 * MIB)
    assert summary.resources["bytes_plain"] == 100 * MIB and summary.resources["bytes_near"] == 5 * MIB
    assert set(summary.split.workers["0"]["sent"]) == {float(MIB)}
    table = {name: [text(one) for one in summary.workers] for name, _, text in byte_columns(summary)}
    assert table == {
        "worker": ["0", "1"],
        "sent per step": ["1.0 MiB"] * 2,
        "without a codec": ["4.0 MiB"] * 2,
        "times smaller": ["4.00"] * 2,
        "sent in all": ["20.0 MiB"] * 2,
        "left its host": ["20.0 MiB", "15.0 MiB"],
        "hidden per step": ["6.00 ms"] * 2,
        "not hidden": ["10.0 ms"] * 2,
    }
    said = traffic(summary)
    assert "1.0 MiB per step, 4.00 times less than the 4.0 MiB without a codec" in said
    assert "88% of it leaves the host" in said and "hides 38% of the communication" in said
    page = shown(summary)
    assert said in page and 'data-plot="bytes"' in page and 'data-plot="overlap"' in page
    for name in ("staleness", "link", "forecast"):
        assert f'data-plot="{name}"' not in page
    assert dataclasses.asdict(summary)["workers"][0]["costs"]["plain"] == 40 * MIB


def test_what_is_not_compressed_or_hidden_or_sent_at_all(tmp_path: Path) -> None:
    near = [usage(3.5, one, 1.0, sent=MIB, bytes_=(MIB, MIB, 0)) for one in range(2)]
    made = [*start(0.0, 2), *steps(3, costs=(0.0, 1000, 1000)), *near, end(4.0)]
    plain = summarise(write(tmp_path / "plain", made))
    names = [name for name, *_ in byte_columns(plain)]
    assert names == ["worker", "sent per step", "sent in all", "left its host"]
    said = "A worker sends 1000 B per step. Nothing of it leaves the host. Computing hides nothing of the"
    assert traffic(plain) == f"{said} communication."
    assert 'data-plot="bytes"' in shown(plain) and 'data-plot="overlap"' not in shown(plain)
    larger = summarise(write(tmp_path / "larger", [*start(0.0, 2), *steps(3, costs=(0.0, 2000, 1000)), end(4.0)]))
    assert "2.0 KiB per step, instead of 1000 B without a codec. Computing" in traffic(larger)  # no usage came
    alone = summarise(write(tmp_path / "alone", [*start(0.0, 1), *steps(3, 1, (0.0, 0, 0)), end(4.0)]))
    assert traffic(alone) == "" and "Where the bytes went" not in shown(alone)


def test_a_record_of_a_former_version(tmp_path: Path) -> None:
    made = [*start(0.0, 2), *steps(3), usage(3.5, 0, 1.0, sent=MIB), end(4.0)]
    for one in made:
        for name in ("hidden_ms", "sent", "plain", "bytes_near", "bytes_plain", "bytes_received"):
            one.pop(name, None)
    summary = summarise(write(tmp_path, made))
    assert summary.workers[0].bytes_sent == MIB and summary.workers[0].costs["sent"] == 0
    assert "Where the bytes went" not in shown(summary)


def test_parameter_servers(tmp_path: Path) -> None:
    made = [*start(0.0, 2), *steps(3), usage(3.5, 0, 1.0, sent=MIB, bytes_=(0, MIB, 3 * MIB))]
    for at, sent in ((2.5, MIB), (3.0, 5 * MIB)):  # the last word counts
        made.append(event("traffic", at, server=0, host="there", bytes_sent=sent, bytes_near=MIB))
    again = event("traffic", 6.0, server=0, host="here", bytes_sent=2 * MIB, bytes_near=0)
    summary = summarise(write(tmp_path, [*made, end(4.0), *start(5.0, 2, resume=True, steps=3), again, end(7.0)]))
    assert summary.traffic.servers == {"0": {"host": "here", "bytes_sent": 7 * MIB, "bytes_near": MIB}}
    page = shown(summary)
    assert "server 0" in page and "6.0 MiB" in page and "from servers" in page and "3.0 MiB" in page


def test_staleness_is_counted(tmp_path: Path) -> None:
    pushes = [(1, 0, 1, 0), (1, 1, 2, 1), (2, 0, 3, 1), (2, 1, 4, 3)]
    made = [
        event("pushes", 2.5, worker=0, version=4, pushes=pushes),
        event("pushes", 2.6, worker=1, version=5, pushes=[(3, 0, 5, 10_000)]),
    ]
    summary = summarise(write(tmp_path, [*start(0.0, 2), *steps(3), *made, end(4.0)]))
    assert len(summary.traffic.staleness) == MOST_STALE + 1 and sum(summary.traffic.staleness) == 5
    assert summary.traffic.staleness[:4] == (1, 2, 0, 1) and summary.traffic.staleness[-1] == 1
    assert 'data-plot="staleness"' in shown(summary)


def test_a_forecast_stands_beside_its_measurement(tmp_path: Path) -> None:
    made = [
        decision(2.2, 2, "none", "int8", measured=95.0),
        decision(2.4, 4, "int8", "int8", measured=33.0, int8=31.0),
        decision(2.6, 6, "int8", "none", measured=34.0, none=25.0),
    ]
    summary = summarise(write(tmp_path, [*start(0.0, 2), *steps(8), *made, end(4.0)]))
    found = [(one.step, one.choice, one.forecast_ms, one.measured_ms) for one in summary.traffic.decisions]
    assert found == [(2, "int8", 30.0, 33.0), (4, "int8", 31.0, 34.0), (6, "none", 25.0, None)]
    assert [one.kind for one in summary.incidents if one.kind == "decision"] == ["decision"] * 2, "what changed"
    page = shown(summary)
    drawn = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert drawn["decisions"]["forecast_ms"] == [30.0, 31.0, 25.0]
    assert drawn["decisions"]["measured_ms"] == [33.0, 34.0, None]
    assert [one["kind"] for one in drawn["marks"]] == ["decision"] * 2
    assert page.count('<b class="decision"') == 2 and page.count('<u class="choice"') == 1
    assert "none → int8" in page and "int8 → none" in page and "200 Mbit/s" in page


def test_a_resumed_run_measures_no_decision_of_the_former_start(tmp_path: Path) -> None:
    first = [*start(0.0, 2), *steps(3), decision(2.2, 2, "none", "int8"), end(4.0)]
    second = [*start(5.0, 2, resume=True, steps=3), decision(7.0, 5, "none", "none", measured=60.0), end(8.0)]
    summary = summarise(write(tmp_path, [*first, *second]))
    assert [one.measured_ms for one in summary.traffic.decisions] == [None, None]


@pytest.mark.parametrize("changes", [False, True])
def test_many_decisions_are_thinned_out(changes: bool, tmp_path: Path) -> None:
    choices = ["none", "int8"]
    made = [
        decision(
            2.0 + one / 100, one, choices[one % 2] if changes else "none", choices[(one + 1) % 2] if changes else "none"
        )
        for one in range(1, 1001)
    ]
    made[600] = decision(8.01, 601, "none", "int8")
    found = summarise(write(tmp_path, [*start(0.0, 2), *steps(3), *made, end(20.0)])).traffic
    assert len(found.decisions) <= MOST_DECISIONS and len(found.decisions) + found.left_out == 1000
    assert found.decisions[-1].step == 1000 and (changes or 601 in [one.step for one in found.decisions])
    assert all(one.measured_ms == 50.0 for one in found.decisions[:-1])


def feed(at: float, worker: int, **fields: Any) -> Any:
    numbers = dict.fromkeys(("device_samples", "memory_hits", "memory_bytes", "disk_hits", "disk_bytes"), 0)
    numbers |= {"disk_s": 0.0, "fetched": 0, "fetched_bytes": 0, "fetched_s": 0.0}
    return event("feed", at, worker=worker, **{**numbers, "by_holder": {}, **fields})


def test_where_samples_came_from(tmp_path: Path) -> None:
    """Of each process what it said last; a later start is another process, whose numbers are added."""
    near, far = {"memory_hits": 6, "memory_bytes": 6 * MIB}, {"fetched": 2, "fetched_bytes": 2 * MIB, "fetched_s": 1.5}
    first = [feed(3.0, 0, **far), feed(3.1, 1, **far), feed(3.5, 0, **far, **near, by_holder={"a:1": 2 * MIB})]
    again = [feed(9.0, 0, **far, by_holder={"a:1": MIB, "b:1": MIB})]
    record = [*start(0.0, 2), *steps(3), *first, end(4.0, 8, "interrupted")]
    record += [*start(6.0, 2, resume=True, steps=3), *again]
    summary = summarise(write(tmp_path, record), T0 + 10)
    assert summary.traffic.fed["fetched_bytes"] == 6 * MIB and summary.traffic.fed["hit_rate"] == 0.5
    columns, rows = feed_table(summary)
    assert columns == ["worker", "from memory", "from afar", "fetching took"]
    assert rows[0][:3] == ["0", "6 blocks, 6.0 MiB", "4 blocks, 4.0 MiB"]
    assert [row[0] for row in rows] == ["0", "1", "all"] and rows[2][2] == "6 blocks, 6.0 MiB"
    given = "From afar came, by host: a:1 3.0 MiB, b:1 1.0 MiB."
    assert fed(summary) == f"Caches had 50% of the blocks that were asked for. {given}"
    page = shown(summary)
    assert "Where samples came from" in page and "6 blocks, 6.0 MiB" in page


def test_nothing_is_said_of_caches_where_there_is_none(tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, [*start(0.0, 2), *steps(3), end(4.0)]))
    assert fed(summary) == "" and feed_table(summary)[1] == [] and summary.traffic.fed == {}
    assert "Where samples came from" not in shown(summary)

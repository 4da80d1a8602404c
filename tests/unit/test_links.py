"""Links between hosts, measured by real processes: who measures what, and what happens when one of them dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import JOBS, Run, run_script


def measured(folder: Path, which: str, *hosts: str, dies: str = "") -> tuple[Run, dict[int, dict[str, Any]]]:
    """What every member found, with these names for their hosts."""
    told = folder / "told"
    told.mkdir()
    words = (which, str(told), *([dies] if dies else []), *hosts)
    run = run_script(JOBS / "links.py", folder / "run", *words, workers=len(hosts))
    return run, {int(file.stem): json.loads(file.read_text()) for file in told.iterdir()}


@pytest.mark.parametrize(
    ("which", "hosts", "expected"),
    [
        ("ALL", ("a",), []),
        ("ALL", ("a", "a"), []),
        ("RING", ("a", "b"), ["ab", "ba"]),
        ("ALL", ("a", "b", "c"), ["ab", "ac", "ba", "bc", "ca", "cb"]),
        ("RING", ("c", "a", "b"), ["ca", "ab", "bc"]),
        ("ALL", ("b", "b", "a"), ["ba", "ab"]),
    ],
)
def test_every_member_learns_of_every_link(
    which: str, hosts: tuple[str, ...], expected: list[str], warm: int, tmp_path: Path
) -> None:
    _, told = measured(tmp_path, which, *hosts)
    assert sorted(told) == list(range(len(hosts)))
    found = told[0]["links"]
    assert [one["links"] for one in told.values()] == [found] * len(hosts)
    assert [f"{source}{target}" for source, target, *_ in found] == expected
    assert all(0 < mbit_s < 1e7 and round_trip_ms > 0 for *_, mbit_s, round_trip_ms in found)
    assert all(one["total"] == [len(hosts)] * 3 for one in told.values()), "the members still add up afterwards"
    speakers = [hosts.index(name) for name in dict.fromkeys(hosts)]
    assert all((one["sent"] > 0) == (rank in speakers and len(speakers) > 1) for rank, one in told.items())


@pytest.mark.parametrize(
    "moment",
    [
        "1@1",  # before the first word
        "1@2",  # in the midst of the first round trip, which the others have begun
        "2@20",  # while round trips are measured
        "1@27",  # while much is sent
    ],
)
def test_a_member_that_dies_while_it_is_measured(moment: str, warm: int, tmp_path: Path) -> None:
    run, told = measured(tmp_path, "ALL", "a", "b", "c", dies=moment)
    dead = int(moment[0])
    left = [rank for rank in range(3) if rank != dead]
    assert sorted(told) == left
    assert [(one["links"], one["members"], one["total"]) for one in told.values()] == [(None, left, [2.0] * 3)] * 2
    (failure,) = run.of("failure")
    assert (failure["worker"], failure["left"]) == (dead, 2)

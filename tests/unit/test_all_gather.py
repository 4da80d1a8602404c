"""Every host ends with the blocks of all, in the order of the hosts."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import DataError, RendezvousError, UsageError
from cordee.feed.exchange import gather as module
from cordee.feed.exchange.gather import Gathered, all_gather
from cordee.feed.exchange.receiver import Receiver
from exchanging import ACCESS, files_below, make_folder
from harness import DEADLINE_S, free_port

SIZES = ({"x": 2_000_000, "y/z": 10}, {"x": 1_500_000}, {"deep/er": 1})


def gathered(tmp_path: Path, hosts: list[str], here: list[int], deadline_s: float = DEADLINE_S) -> list[Any]:
    """What each of these hosts has at the end, or why it has not."""
    results: list[Any] = [None] * len(here)

    def run(place: int, number: int) -> None:
        try:
            results[place] = all_gather(
                tmp_path / f"own{number}",
                tmp_path / f"all{number}",
                hosts,
                hosts[number],
                access=ACCESS,
                deadline_s=deadline_s,
            )
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=one) for one in enumerate(here)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return results


def test_all_have_all(tmp_path: Path) -> None:
    owns = [make_folder(tmp_path / f"own{number}", sizes, number) for number, sizes in enumerate(SIZES)]
    hosts = [f"127.0.0.1:{free_port()}" for _ in SIZES]
    results: list[Gathered] = gathered(tmp_path, hosts, [0, 1, 2])
    total = sum(sum(one.values()) for one in SIZES)
    for number, result in enumerate(results):
        assert isinstance(result, Gathered), result
        assert [one.name for one in result.parts] == ["part-00000", "part-00001", "part-00002"]
        assert [files_below(one) for one in result.parts] == [files_below(one) for one in owns]
        assert result.received == total - sum(SIZES[number].values()), "each block comes once"
    assert sum(one.sent for one in results) == 2 * total
    with (owns[0] / "x").open("r+b") as file:
        file.write(b"changed in place")
    assert files_below(results[0].parts[0]) == files_below(results[1].parts[0]), "what was gathered stays as it was"
    make_folder(owns[0], SIZES[0], 0)
    again = gathered(tmp_path, hosts, [0, 1, 2])
    assert [(one.received, one.sent) for one in again] == [(0, 0)] * 3


def test_a_host_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    make_folder(tmp_path / "own0", {"x": 10})
    (result,) = gathered(tmp_path, [f"127.0.0.1:{free_port()}" for _ in range(2)], [0])
    assert isinstance(result, RendezvousError) and "did not come" in str(result)
    with pytest.raises(UsageError, match="one of the hosts"):
        all_gather(tmp_path / "own0", tmp_path / "all", ["a:1"], "b:1", access=ACCESS)


def test_a_host_that_gives_nothing(tmp_path: Path) -> None:
    """It takes and passes on, but its own blocks do not come: the others have the rest, and say whose are missing."""
    for number in (0, 2):
        make_folder(tmp_path / f"own{number}", SIZES[number], number)
    hosts = [f"127.0.0.1:{free_port()}" for _ in SIZES]
    with contextlib.closing(Receiver(tmp_path / "all1", hosts[1], ACCESS)):
        results = gathered(tmp_path, hosts, [0, 2], deadline_s=1.5)
    for result in results:
        assert isinstance(result, DataError) and f"the blocks of {hosts[1]} are not complete" in str(result)
    for name, other in (("all0/part-00002", "own2"), ("all2/part-00000", "own0"), ("all1/part-00000", "own0")):
        assert files_below(tmp_path / name) == files_below(tmp_path / other)

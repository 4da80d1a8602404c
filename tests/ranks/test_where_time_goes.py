"""Where the time of a step went: the parts add up to the clock on the wall, and a delay shows where it was put."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pytest

from cordee.core.times import PARTS, Block, Breakdown
from harness import Run, train
from records import made

STEPS = 10
DELAY_S = 0.2


def split(run: Run, skip: int = 1) -> dict[str, dict[str, list[float]]]:
    """Seconds of each step by worker and part, without the first steps, which also pay for what is done once."""
    found: dict[str, dict[str, list[float]]] = {}

    def add(first: int, blocks: Mapping[int, Block]) -> None:
        for worker, block in blocks.items():
            parts = found.setdefault(str(worker), {part: [] for part in PARTS})
            for part in PARTS:
                parts[part] += [ms / 1e3 for ms in getattr(block, part)[max(0, skip - first) :]]

    whole = Breakdown(add)
    whole.expect(range(run.result["workers"]))
    for event in run.of("times"):
        whole.add(made(event))
    whole.finish()
    return found


@pytest.mark.parametrize("batchnorm", [False, True])
def test_the_parts_add_up_to_the_time_between_two_steps(
    batchnorm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Seconds in all: a busy machine takes a moment, of up to 0.15 s, from one end. Most of each step is slept through.
    run = train("delayed", tmp_path / "run", workers=3, batchnorm=batchnorm, steps=300, where="compute", seconds=0.01)
    for worker, parts in split(run).items():
        at = json.loads(Path(f"clock-{worker}.json").read_text())
        assert len(at) == 300
        assert sum(map(sum, parts.values())) == pytest.approx(at[-1] - at[0], rel=0.02, abs=0.15), worker
        assert min(map(sum, parts.values())) >= 0.0


@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("where", ["data", "compute", "callbacks", "communication"])
def test_a_delay_shows_where_it_is_and_nowhere_else(
    where: str, batchnorm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    delay = {"where": where, "seconds": DELAY_S}
    run = train("delayed", tmp_path / "run", workers=3, **delay, batchnorm=batchnorm, steps=STEPS)
    # The median: whatever else runs on this machine holds up some steps, and not always the same worker.
    found = {worker: {part: median(parts[part]) for part in PARTS} for worker, parts in split(run).items()}
    slow = found.pop("1")
    # What is read ahead hides behind the computation, so a little less than the whole delay is waited for.
    assert slow[where] >= 0.8 * DELAY_S, found
    assert all(slow[part] < 0.3 * DELAY_S for part in PARTS if part != where), slow
    for other in found.values():  # they wait for it, and nothing else takes them longer
        assert other["waiting"] >= 0.7 * DELAY_S, other
        assert all(other[part] < 0.3 * DELAY_S for part in PARTS if part != "waiting"), other

"""Shares that change between steps: the workers compute other parts, and train as one process does."""

from __future__ import annotations

from pathlib import Path

from harness import assert_same, train


def test_shares_that_change_in_mid_run_train_as_one_process(warm: int, tmp_path: Path) -> None:
    run = train("resharing", tmp_path / "run", workers=3)
    assert_same(run, train("resharing", tmp_path / "alone", workers=1))
    shares: dict[int, dict[int, int]] = {}
    for event in run.of("times"):
        for place, samples in enumerate(event["samples"]):
            shares.setdefault(event["from"] + place, {})[event["worker"]] = samples
    assert all(sum(one.values()) == (31 if step % 7 < 6 else 14) for step, one in shares.items())
    equal, unequal = {0: 11, 1: 10, 2: 10}, {0: 19, 1: 4, 2: 8}
    assert [shares[step] for step in (0, 4, 5, 7)] == [equal, equal, unequal, unequal]
    assert all(shares[step][0] == 0 for step in range(8, 12))

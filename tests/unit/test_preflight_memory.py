"""An unchanged job is checked once; whatever changes what it computes makes it be checked again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cordee.core.errors import MixingError
from cordee.diagnose.preflight import check
from cordee.diagnose.preflight.memory import fingerprint
from cordee.feed.data import as_source
from cordee.group.team import Team
from cordee.train.checks import subject_of
from cordee.train.job import Job, Resolved

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
SCALE = {"factor": 1.0}


def entropy(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y) * SCALE["factor"]


class Counting(nn.Linear):
    """Counts its passes where no fingerprint sees it."""

    def forward(self, x: Tensor) -> Tensor:
        torch.ones(1).numpy()  # to be seen as code of the user's
        PASSES.tally += 1
        return super().forward(x)


class PASSES:
    tally = 0


def passes(data: Any = (X, Y), loss: Any = entropy, model: Callable[[], nn.Module] = lambda: Counting(6, 3)) -> int:
    """How many passes a start of this job costs."""
    PASSES.tally = 0
    job = Job(model=model, loss=loss, optimizer=torch.optim.SGD, data=data)
    check.before_training(
        subject_of(job, job.make_model()), job.data.train, job.order(Resolved(32, 1.0)), Team(), "cpu"
    )
    found, PASSES.tally = PASSES.tally, 0
    return found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cordee" / "preflight.json"


def test_a_second_start_of_the_same_job_costs_no_pass(cache: Path) -> None:
    assert passes() > 10
    assert cache.exists()
    assert passes() == 0


def test_what_changes_the_job_or_its_data_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    passes()
    changed = Y.clone()
    changed[17] = 1
    assert passes(data=(X, changed)) > 0
    assert passes(loss=lambda out, y: entropy(out, y)) > 0
    assert passes(model=lambda: nn.Sequential(Counting(6, 3), nn.Dropout(0.1))) > 0
    monkeypatch.setitem(SCALE, "factor", 2.0)
    assert passes() > 0


def test_a_refusal_is_not_remembered() -> None:
    for _ in range(2):
        with pytest.raises(MixingError):
            passes(loss=lambda out, y: nn.functional.cross_entropy(out, y, reduction="sum"))


@pytest.mark.parametrize("content", [b"{", b'{"a": 1}', b"[1, 2]", b"", b'["\xff"]', b"[" * 100_000])
def test_a_damaged_cache_is_no_cache(cache: Path, content: bytes) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    assert passes() > 10
    assert passes() == 0


def test_a_cache_that_cannot_be_written_costs_a_check(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.mkdir()
    assert passes() > 10
    assert passes() > 10


def test_a_fingerprint_sees_code_closures_globals_and_attributes() -> None:
    def made(value: float, *, name: str = "a") -> Callable[[float], float]:
        return lambda x: x * value

    class Held:
        def __init__(self, value: Any) -> None:
            self.value = value

    different = [made(1.0), made(2.0), Held(1), Held(2), Held([1]), nn.Linear(2, 3), nn.Linear(3, 2), X, X + 1]
    prints = [fingerprint([one]) for one in different]
    assert None not in prints and len(set(prints)) == len(prints)
    assert fingerprint([made(1.0)]) == prints[0]
    assert fingerprint([nn.Linear(2, 3)]) == prints[5]


def importing(x: Tensor) -> Tensor:
    import string

    return x * len(string.digits)


@pytest.mark.parametrize(
    "thing",
    [lambda path: path.open(), lambda x: eval(x), (one for one in [1]), lambda x: importing(x)],
    ids=["file", "eval", "generator", "import"],
)
def test_what_cannot_be_told_has_no_fingerprint(thing: Any) -> None:
    assert fingerprint([thing]) is None


def test_pool_holds_the_extremes_of_a_column() -> None:
    from cordee.diagnose.preflight.samples import choose

    tokens = np.arange(60_000).reshape(600, 100) % 50_000
    tokens[444, 7] = -100
    source = as_source((tokens, tokens))
    assert 444 in choose(source, np.arange(40))[:16]

"""Checkpointing of activations: a parameter whose gradient comes in pieces cannot be sent early, and that is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import ModelError
from harness import Run, assert_same, train

Reference = Callable[..., Run]


def test_a_gradient_in_pieces_is_refused_where_it_would_be_sent_early(warm: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"several pieces.*use_reentrant=False.*overlap=false"):
        train("reentrant", tmp_path / "run", workers=2, plan="bucket_mb=0.01")


@pytest.mark.parametrize(
    ("workers", "plan", "settings"),
    [
        pytest.param(2, "overlap=false,bucket_mb=0.01", {}, id="nothing is sent early"),
        pytest.param(2, "auto", {}, id="one bucket, which is sent at the end"),
        pytest.param(
            3,
            "overlap=false,proportions=2:0:1,bucket_mb=0.01",
            {},
            id="the same with an empty share",
            marks=pytest.mark.slow,
        ),
        pytest.param(2, "bucket_mb=0.01", {"reentrant": False}, id="not reentrant", marks=pytest.mark.slow),
        pytest.param(3, "bucket_mb=0.01", {"shared": False}, id="reentrant, in one piece each"),
    ],
)
def test_what_the_message_advises_trains_as_one_process(
    workers: int, plan: str, settings: dict[str, Any], reference: Reference, tmp_path: Path
) -> None:
    run = train("reentrant", tmp_path / "run", workers=workers, plan=plan, **settings)
    assert_same(run, reference("reentrant", **settings))

"""Complex parameters: trained on several workers as on one, saved, resumed, handed over and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import cordee
from cordee.state.checkpoint import Checkpoints
from cordee.state.load import read_weights
from cordee.state.naming import Snapshot, fingerprint
from harness import Run, assert_same, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(
    ("workers", "plan", "settings"),
    [
        (1, "auto", {}),
        (2, "backend=gloo,bucket_mb=0.01", {"optimizer": "sgd", "clip": 0.5}),
        pytest.param(3, "auto", {}, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_resumed_equals_one_process(
    workers: int, plan: str, settings: dict[str, object], reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train("waves", out, workers=workers, plan=plan, stop_steps=5, **settings)
    run = train("waves", out, workers=3 - workers % 3, plan=plan, resume=True, traced=True, **settings)
    alone = reference("waves", traced=True, **settings)
    assert_same(run, alone)
    weights = read_weights(run.out)
    assert weights["filter"].dtype == torch.complex128 and float(weights["filter"].imag.abs().max()) > 0
    assert run.result["params_sha256"] == fingerprint(weights)
    x = cordee.data.digits().test.gather(np.arange(5))["x"]  # type: ignore[union-attr]
    expected = cordee.load(alone.out)(x)
    assert torch.allclose(cordee.load(run.out)(x), expected, atol=1e-9) and expected.dtype == torch.float64


def test_single_precision_on_two_workers(reference: Reference, tmp_path: Path) -> None:
    run = train("waves", tmp_path / "run", workers=2, dtype="complex64", start_from=reference("waves").out)
    assert any("converted from complex128" in one["message"] for one in run.of("warning"))
    again = train("waves", tmp_path / "one", dtype="complex64", start_from=reference("waves").out)
    assert_same(run, again, loss=1e-5, tensor=None)
    assert run.tensors["filter"].dtype == np.complex64


def test_a_checkpoint_holds_complex_numbers_of_all_precisions(tmp_path: Path) -> None:
    tensors = {str(kind): torch.randn(2, 3, dtype=kind) for kind in (torch.complex64, torch.complex128)}
    tensors["scalar"] = torch.tensor(1 + 2j, dtype=torch.complex128)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Snapshot(tensors), step=1, wait=True)
    found = checkpoints.read(1).tensors
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(torch.view_as_real(found[name]), torch.view_as_real(tensor))

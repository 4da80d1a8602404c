"""Groups of a generation are registered with torch: `DeviceMesh` and DTensor run over them, through a regroup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import JOBS, run_script


@pytest.mark.parametrize("dies", [0, 2])
def test_a_device_mesh_works_again_after_a_loss(warm: int, tmp_path: Path, dies: int) -> None:
    run = run_script(JOBS / "meshes.py", tmp_path / "run", str(tmp_path), str(dies), workers=4)
    assert len(run.of("failure")) == 1
    for worker in {0, 1, 2, 3} - {dies}:
        about = json.loads((tmp_path / f"{worker}.json").read_text())
        assert about == {"errors": [0.0] * 4, "released": True, "total": 3.0, "size": 3}

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from harness import JOBS, run_script


def test_parameters_that_come_later_are_summed_too(tmp_path: Path) -> None:
    found = []
    for workers in (1, 3):
        file = tmp_path / f"{workers}.safetensors"
        run_script(JOBS / "unfreezing.py", tmp_path / f"run{workers}", str(file), workers=workers)
        found.append(load_file(file))
    one, three = found
    for name, tensor in one.items():
        torch.testing.assert_close(three[name], tensor, rtol=0, atol=1e-9)

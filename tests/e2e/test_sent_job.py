"""A job that a script sends to the workers: its functions use what the script's functions use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness import DEADLINE_S

HELPER = """
from torch import nn

def make():
    return nn.Linear(64, 10)
"""

SCRIPT = """
import json
import sys
import threading
import xml
import torch
from torch import nn
import cordee
import helper

SCALE = 2.0
held = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = helper.make()

    def forward(self, x):
        return self.inner(x) * SCALE


class Looks(cordee.Callback):
    def on_epoch(self, run, epoch):
        import xml.dom
        assert xml.dom and cordee.errors.JobError and cordee.__version__


def objective(model, batch):
    assert isinstance(batch, cordee.Batch) and held is None and callable(cordee.train)
    output = model(batch.x)
    return nn.functional.cross_entropy(output, batch.y), output


def job(**more):
    return cordee.Job(
        model=Net,
        objective=objective,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=cordee.data.digits(),
        batch=500,
        epochs=1,
        metrics={"accuracy": lambda output, target: cordee.metrics.accuracy(output, target)},
        callbacks=[Looks()],
        **more,
    )


if __name__ == "__main__":
    result = cordee.train(job(), workers=2, threads=1, out=sys.argv[1], progress=False)
    held = threading.Lock()
    try:
        cordee.train(job(), workers=2, out=sys.argv[1] + "-not", progress=False)
    except cordee.errors.JobError as error:
        print(json.dumps({"validation": sorted(result.validation), "error": str(error)}))
"""


def test_functions_use_the_package_by_name_and_modules_beside_the_script(tmp_path: Path, warm: int) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(folder / "script.py"), "run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["validation"] == ["accuracy", "loss"]
    assert "cannot be sent to the workers" in said["error"] and "lock" in said["error"]

"""A real notebook: progress is one line, and the result is a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import DEADLINE_S

nbclient = pytest.importorskip("nbclient", reason="the packages nbclient and ipykernel are not there")
pytest.importorskip("ipykernel", reason="the packages nbclient and ipykernel are not there")

CELL = """
import torch, cordee
from torch import nn

class Prints(cordee.Callback):
    def on_epoch(self, session, epoch):
        print(f"epoch {epoch} on {session.rank}")

job = cordee.Job(
    model=lambda: nn.Linear(64, 10), loss=nn.functional.cross_entropy, data=cordee.data.digits(), batch=250, epochs=2,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), metrics={"accuracy": cordee.metrics.accuracy},
    callbacks=[Prints()],
)
cordee.train(job, workers=2, out="run")
"""


def test_a_notebook(warm: int, tmp_path: Path) -> None:
    import nbformat

    book: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])  # type: ignore[no-untyped-call]
    client = nbclient.NotebookClient(
        book, timeout=DEADLINE_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = book.cells[0].outputs
    said = "".join(one["text"] for one in outputs if one["output_type"] == "stream")
    lines = [line.rpartition("\r")[2].rstrip() for line in said.rstrip("\n").split("\n")]
    prints = [f"epoch {epoch} on {rank}" for epoch in (0, 1) for rank in (0, 1)]
    assert sorted(line for line in lines if line in prints) == sorted(prints), lines
    assert len(lines) == 5 and lines[-1].startswith("step 12 of 12, loss ") and "accuracy" in lines[-1], lines
    (shown,) = (one["data"] for one in outputs if one["output_type"] == "execute_result")
    assert "validation" in shown["text/plain"] and shown["text/html"].startswith("<table>")

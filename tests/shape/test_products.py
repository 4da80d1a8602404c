"""The recorded table of models and plans is whole, and says of no plan that it is refused when it is not, or runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cordee.core.plan import Plan
from shape.house import ROOT
from splits import MODELS, PLANS

RECORD = ROOT / "benchmarks" / "results" / "products.json"


def stale(cells: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Cells that are missing, or say other things of a plan than `Plan.check` does: train these anew."""
    for name, model in MODELS.items():
        for plan, split in PLANS.items():
            cell = cells.get(name, {}).get(plan)
            refused = bool(Plan.parse(model.plan(split)).refusals(split.workers))
            if cell is None or refused != cell.get("reason", "").startswith("plan "):
                yield f"benchmarks/products.py --only {name} --plan '{plan}'"


def test_the_record_has_all_models_and_plans() -> None:
    assert list(stale(json.loads(RECORD.read_text(encoding="utf-8"))["cpu"]["cells"])) == []


def test_a_stale_cell_is_seen() -> None:
    cells = json.loads(RECORD.read_text(encoding="utf-8"))["cpu"]["cells"]
    del cells["mlp"]["tensor=2"]
    cells["gpt"]["shard=params"] = {"verdict": "refused", "reason": "plan shard=params cannot run on 2 worker(s): no."}
    assert [one.partition("--only ")[2] for one in stale(cells)] == [
        "mlp --plan 'tensor=2'",
        "gpt --plan 'shard=params'",
    ]

"""The result of `network.py`: what it holds, how it is continued, and how it is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.contenders import CPU, SYNCHRONOUS, Contender
from peers.figures import written
from peers.hosts import HOSTS
from peers.machine import described
from peers.network_figures import SLOW_STEP_S, TOLERANCE, UNLIMITED, Cell

SPEEDS = (UNLIMITED, "1000", "100", "10")
HEAD = {
    "hosts": f"{HOSTS} emulated on one machine, {CPU} core and 1 worker of 1 thread each",
    "speeds": "in Mbit/s, of each host's link, both ways at once",
    "limit": f"samples per second of {SYNCHRONOUS} on unlimited links, on hosts of its own, just before each turn",
    "share": "samples per second over the limit: median and range over the rounds",
    "extrapolated": f"throughput: steps of {SLOW_STEP_S:g} s and more, the cell rests on `steps`; time_to_loss: cut off"
    " after `measured_steps`, the rest from the same contender's losses on a faster link and this link's step time",
    "seconds_to_loss": f"training time until an evaluation is at most {TOLERANCE} above the reference's loss",
    "sent_bytes_per_step": "by the host that sent most, with headers, as the link counted them",
}


class Book:
    """The result, which is written after every cell."""

    def __init__(self, path: Path, settings: dict[str, Any], modules: Sequence[str], *, resume: bool) -> None:
        """A new one, or that of the file; `SystemExit` if it was measured otherwise."""
        self._path = path
        head = {**described("cordee", *modules), **HEAD, "settings": settings}
        self.result: dict[str, Any] = {**head, "contenders": {}, "left_out": {}, "throughput": {}, "time_to_loss": {}}
        if resume and path.exists():
            self.result = json.loads(path.read_text())
            for key in ("machine", "versions", "settings"):
                if self.result[key] != head[key]:
                    sys.exit(f"--resume: {path} has {key} {self.result[key]}, now {head[key]}: measure anew")
            self.result.setdefault("resumed", []).append(head["date"])

    def cell(self, table: str, contender: Contender, speed: str) -> Cell:
        """What there is of it so far."""
        cell: Cell = self.result[table].get(contender.name, {}).get(speed, {})
        return cell

    def keep(self, table: str, contender: Contender, speed: str, cell: Cell) -> None:
        """Write it down."""
        self.result[table].setdefault(contender.name, {})[speed] = cell
        self.result["contenders"][contender.name] = contender.words
        self.result["left_out"].pop(f"{table}: {contender.name}", None)
        self.write()

    def leave_out(self, table: str, contender: Contender, why: object) -> None:
        """It has failed, or is not there."""
        print(f"{table}: {contender.name} is left out: {why}", file=sys.stderr, flush=True)
        self.result["left_out"][f"{table}: {contender.name}"] = str(why)
        self.write()

    def note(self, table: str, contender: Contender, error: object) -> None:
        """It was measured, and failed at its end."""
        print(f"{table}: {contender.name} was measured, but ended badly: {error}", file=sys.stderr, flush=True)
        self.result.setdefault("ended_badly", {})[f"{table}: {contender.name}"] = str(error).rpartition(" -- ")[2]
        self.write()

    def write(self) -> None:
        """All of it, at once: a run that is killed leaves a whole file."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(written(self.result))
        draft.replace(self._path)


def show_throughput(name: str, speed: str, cell: Cell) -> None:
    """A cell, as soon as it is there."""
    print(
        f"throughput   {name:<42} {speed:>9} {cell['samples_per_s']:>9.2f} samples/s {cell['share']:>7.1%} of the limit"
        f" ({cell['steps']} steps)",
        flush=True,
    )


def show_loss(name: str, speed: str, cell: Cell) -> None:
    """A cell, as soon as it is there."""
    print(f"time_to_loss {name:<42} {speed:>9} {_loss_text(cell)}", flush=True)


def _share_text(cell: Cell) -> str:
    if not cell:
        return "-"
    text = f"{cell['share']:.3f}"
    if len(cell["turns"]) > 1:
        text += f" ({cell['share_range'][0]:.3f}-{cell['share_range'][1]:.3f})"
    return text + (f" *{cell['steps']}" if cell["extrapolated"] else "")


def _loss_text(cell: Cell) -> str:
    if not cell:
        return "-"
    seconds, loss = cell["seconds_to_loss"], cell["loss_at_equal_samples"]
    text = "not reached" if seconds is None else f"{seconds:.0f} s"
    text += "" if loss is None else f", {loss:.3f}"
    return text + (f" *{cell['measured_steps']}" if cell["extrapolated"] else "")


def show_tables(result: dict[str, Any], tables: Sequence[str]) -> None:
    """Contenders down, speeds across."""
    heads = {
        "throughput": "samples/s as a share of the limit: median (range); *n: rests on n steps",
        "time_to_loss": "time to the reference's loss, loss at equal samples; *n: extrapolated from n steps",
    }
    for table, text in (("throughput", _share_text), ("time_to_loss", _loss_text)):
        if table not in tables or not result[table]:
            continue
        speeds = [speed for speed in SPEEDS if any(speed in row for row in result[table].values())]
        speeds += sorted({speed for row in result[table].values() for speed in row} - set(speeds))
        print(f"\n{table}: {heads[table]}\n{'':<42}" + "".join(f"{speed:>27}" for speed in speeds))
        for name, row in result[table].items():
            print(f"{name:<42}" + "".join(f"{text(row.get(speed, {})):>27}" for speed in speeds))
    for name, why in result["left_out"].items():
        print(f"left out: {name}: {why.splitlines()[0] if why else why}")

"""The result of `network.py`: what it holds, how it is continued, and how it is shown."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peers.contenders import CPU, SYNCHRONOUS, Contender
from peers.figures import written
from peers.hosts import HOSTS
from peers.machine import described
from peers.network_figures import TOLERANCE, UNLIMITED, Cell

SPEEDS = ("1000", "100", "10")
HEAD = {
    "hosts": f"{HOSTS} emulated on one machine, {CPU} core and 1 worker of 1 thread each",
    "speeds": "in Mbit/s, of each host's link, both ways at once",
    "batches": "all contenders take the same global batches from the same first weights; one seed, one start: luck is"
    " not told from merit, neither in losses nor in the times of a start",
    "limit": f"step time of {SYNCHRONOUS} on unlimited links, on hosts of its own, just before and after each cell",
    "share": "samples per second over the limit's: median and range over the turns",
    "few_steps": "steps take seconds, so the cell rests on fewer than `settings.steps`",
    "seconds_to_loss": f"training time until the validation loss is at most {TOLERANCE} above that of {SYNCHRONOUS}"
    " after `settings.learn` steps, a straight line between two evaluations; starting is not counted",
    "composed": "seconds_to_loss is steps until the loss times this link's step time. The link does not change what a"
    " step does there, so losses were measured once (`curves`), on hosts without limits. With sync=local workers share"
    " out the parts of a window as they go, so its losses may differ a little from start to start",
    "first_steps_more_s": "the first 10 steps of PowerSGD's hook send whole gradients: by so much they are longer, as"
    " ddp's step time at this speed tells",
    "decisions": "what sync=auto decided up to the end of the cell",
    "steps_until_another_choice": "of a change of the links' speed: steps after it that were sent the old way. A change"
    " is booked after the steps that were committed when it was made",
    "starts": "time to loss of the fastest of ours and of the peers at each speed, each trained there, one start after"
    " the other, in another order in each round: nothing is composed, and the first steps count for all of them",
    "curve": "steps, validation loss, seconds; a point within a window of local steps stands at the window's end, whose"
    " model it has. loss_at_equal_samples then lies on a straight line between two points",
    "processor_ms": "processor time per step and host; compute_ms: a step's computing by the clock, mean over steps and"
    " workers. Of equal starts they tell a noisy machine",
    "summary": "medians over the rounds; `/ first` is the time of sync=auto over that of the first one in its round",
    "forecasts": "step times; the measured one is that until the next decision, and the speed may change in between",
    "sent_bytes_per_step": "by the host that sent most, with headers, as the link counted them",
}


class Clock:
    """How much time is left, and what there was no time for."""

    def __init__(self, minutes: float) -> None:
        """It begins now."""
        self._began, self._whole_s = time.monotonic(), 60 * minutes
        self._skipped: list[str] = []

    def each(self, table: str, starts: Sequence[tuple[Contender, list[str]]]) -> Iterator[tuple[Contender, list[str]]]:
        """One start after the other, while there is time."""
        first = time.monotonic()
        for number, start in enumerate(starts):
            now = time.monotonic()
            if now - self._began >= self._whole_s:
                self._skipped += [f"{table}: {contender.name} {speeds}" for contender, speeds in starts[number:]]
                return
            left = f", about {(now - first) / number * (len(starts) - number) / 60:.0f} min left" if number else ""
            print(
                f"{table}: start {number + 1} of {len(starts)} after {(now - self._began) / 60:.1f} min{left}",
                flush=True,
            )
            yield start

    def tell(self) -> None:
        """What is missing."""
        print(f"\n{(time.monotonic() - self._began) / 60:.1f} min")
        for name in self._skipped:
            print(f"no time was left for {name}: continue with --resume")


class Book:
    """The result, which is written after every cell."""

    def __init__(self, path: Path, settings: dict[str, Any], modules: Sequence[str], *, resume: bool) -> None:
        """A new one, or that of the file; `SystemExit` if it was measured otherwise."""
        self._path = path
        head = {**described("cordee", *modules), **HEAD, "settings": settings}
        self.result: dict[str, Any] = {**head, "contenders": {}, "left_out": {}, "throughput": {}}
        self.result |= {"curves": {}, "time_to_loss": {}}
        if resume and path.exists():
            self.result = json.loads(path.read_text())
            for key in ("machine", "versions", "settings"):
                now, then = head[key], self.result[key]
                # A peer that was measured then need not be installed now.
                same = set(now.split(", ")) <= set(then.split(", ")) if key == "versions" else now == then
                if not same:
                    sys.exit(f"--resume: {path} has {key} {self.result[key]}, now {head[key]}: measure anew")
            self.result |= HEAD
            self.result.setdefault("resumed", []).append(head["date"])
        self.date = head["date"]

    def cell(self, table: str, contender: Contender, speed: str) -> Cell:
        """What there is of it so far."""
        cell: Cell = self.result[table].get(contender.name, {}).get(speed, {})
        return cell

    def forget(self, table: str, contender: Contender, speeds: Sequence[str]) -> None:
        """These cells are measured anew; the record says when."""
        had = [speed for speed in speeds if self.result[table].get(contender.name, {}).pop(speed, None)]
        if table == "time_to_loss":
            self.result["curves"].pop(contender.name, None)
        if had:
            what = f"{self.date}: {table}: {contender.name} at {', '.join(had)}"
            self.result.setdefault("measured_anew", []).append(what)

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

    def failed(self, table: str, contender: Contender, speeds: Sequence[str], error: object) -> None:
        """It has failed before all these speeds were measured, or only at its end."""
        if not speeds or any(not self.cell(table, contender, speed) for speed in speeds):
            self.leave_out(table, contender, error)
            return
        self.ended_badly(table, contender, error)

    def ended_badly(self, table: str, contender: Contender, error: object) -> None:
        """It was measured, but for one start, or it failed only at its end; no path of this machine is written."""
        print(f"{table}: {contender.name} was measured, but ended badly: {error}", file=sys.stderr, flush=True)
        told = re.sub(r"/\S*/(\.venv/|benchmarks/)", r"\1", str(error).rpartition(" -- ")[2])
        told = re.sub(r"/tmp/[^/\s]+", "FOLDER", told)
        self.result.setdefault("ended_badly", {})[f"{table}: {contender.name}"] = told
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
    return text + (f" *{cell['steps']}" if cell["few_steps"] else "")


def _loss_text(cell: Cell) -> str:
    if not cell:
        return "-"
    seconds, loss = cell["seconds_to_loss"], cell["loss_at_equal_samples"]
    last = (cell.get("curve") or cell["points"])[-1][0]
    text = f"not in {last} steps" if seconds is None else f"{seconds:.0f} s"
    text += "" if loss is None else f", {loss:.3f}"
    return text + (" +" if cell["composed"] else "")


def show_tables(result: dict[str, Any], tables: Sequence[str]) -> None:
    """Contenders down, speeds across."""
    heads = {
        "throughput": "samples/s as a share of the limit: median (range); *n: rests on n steps",
        "time_to_loss": "time to the loss of synchronous training, loss at equal samples; +: composed",
    }
    for table, text in (("throughput", _share_text), ("time_to_loss", _loss_text)):
        if table not in tables or not result[table]:
            continue
        speeds = [speed for speed in (UNLIMITED, *SPEEDS) if any(speed in row for row in result[table].values())]
        speeds += sorted({speed for row in result[table].values() for speed in row} - set(speeds))
        print(f"\n{table}: {heads[table]}\n{'':<42}" + "".join(f"{speed:>31}" for speed in speeds))
        for name, row in result[table].items():
            curve = result["curves"].get(name, {})
            cells = [{**curve, **row[speed]} if speed in row else {} for speed in speeds]
            print(f"{name:<42}" + "".join(f"{text(cell):>31}" for cell in cells))
        for name, row in result[table].items():
            for speed, cell in row.items():
                if cell.get("decisions"):
                    print(f"{name} at {speed} had chosen {cell['decisions'][-1]['choice']} at the end")
    if "reaction" in tables and "reaction" in result:
        found = result["reaction"]
        print(f"\nreaction: {found['changes']}: another choice after {found['steps_until_another_choice']} steps")
        for one in found["forecasts"]:
            print("  " + ", ".join(f"{key} {value}" for key, value in one.items()))
    if "trained" in tables and "trained" in result:
        for speed, row in result["trained"]["summary"].items():
            print(f"\ntrained at {speed}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    for name, why in result["left_out"].items():
        print(f"left out: {name}: {why.splitlines()[0] if why else why}")

"""How fast samples come from disk, beside the loaders of others: `python benchmarks/loaders.py`.

40,000 samples of 3,072 bytes and a label, each system with files of its own form; batches of 128, fully shuffled
where a system can. Each turn is a process of its own that does nothing but read. First the settings of each system are
tried, then the fastest one of each is measured, in rounds: one turn of each system after the other.

The peers have an environment of their own, for they ask for versions that do not fit ours: `make .venv-loaders/ready`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peers.figures import written
from peers.loading_data import BATCH, SAMPLES, SHAPE, System, forget, quality
from peers.loading_systems import CORDEE, PEERS
from peers.machine import described

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "loaders.json"
TURN = HERE / "peers" / "loading_turn.py"
PYTHON = HERE.parent / ".venv-loaders" / "bin" / "python"
LIMIT_S, ENOUGH_S, TURN_S = 25.0, 6.0, 150.0
"""Of an epoch that is measured; of a first epoch, after which a trial looks at no other; of a whole turn."""
STOP = SAMPLES // BATCH // 2
GOALS = {
    "rate_over_best_peer": 10.0,
    "rate_over_take": 0.6,
    "shuffle_quality": 0.99,
    "resume_ms": 50.0,
    "state_bytes": 64,
}
HOW = {
    "samples": f"{SAMPLES} of {int(np.prod(SHAPE))} random bytes {SHAPE} and an int64 label, the sample's number",
    "rate": "samples per second over whole epochs, their start included, after a first one that is not counted",
    "cold": "samples per second of a new process's first epoch, from opening to its end, after the files were taken out"
    " of the page cache (fsync, posix_fadvise DONTNEED; mincore says what stayed). The disk's own cache, or that of a"
    " host of virtual machines, stays as it is",
    "first_batch_ms": "from opening the set to the first batch, files in the page cache; imports are not counted",
    "resume_ms": f"the same with a state that another process saved after {STOP} batches",
    "state_bytes": "of what has to be saved, as JSON or pickled, whichever is smaller; seed and settings are the job's",
    "shuffle_quality": "mean distance of samples that follow each other, over a third of their number",
    "lost, repeated": "samples of the stopped and resumed epoch",
}


class Failed(Exception):
    """A turn came to nothing."""


class Runs:
    """Turns of systems whose files lie in one folder."""

    def __init__(self, folder: Path, python: Path) -> None:
        """`python` is the peers'; ours runs in the interpreter of this process."""
        self._folder, self._python = folder, python

    def turn(self, name: str, system: System, task: str, setting: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """What a turn measured."""
        asked = {"task": task, "folder": str(self.folder(name)), "setting": dict(setting), **more}
        asked |= {"script": system.script, "loading": system.loading}
        asked |= {"packages": list(system.packages), "modules": list(system.modules)}
        python = str(self._python.parents[1] / system.environment / "bin" / "python")
        if system is CORDEE:
            python = sys.executable
        words = [python, str(TURN), json.dumps(asked)]
        quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
        home = {"HF_HOME": str(self._folder / "hf"), "TMPDIR": str(self._folder)}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                words, stdout=out, stderr=err, env=os.environ | quiet | home, cwd=self._folder, start_new_session=True
            )
            try:
                code: int | str = process.wait(TURN_S)
            except subprocess.TimeoutExpired:
                code = f"no end after {TURN_S:g} s"
            with contextlib.suppress(ProcessLookupError):  # workers that are left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            out.seek(0), err.seek(0)
            said, complaints = out.read().strip(), err.read().strip()
        if code:
            raise Failed(f"{task}: {code}: {complaints.splitlines()[-1] if complaints else 'nothing was printed'}")
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    def folder(self, name: str) -> Path:
        """Where a system has its files."""
        return self._folder / name


def fastest(runs: Runs, name: str, system: System) -> tuple[str, dict[str, Any]]:
    """Try each setting for an epoch or two; which one is the fastest, and the rates of all."""
    rates: dict[str, Any] = {}
    for setting, words in system.settings.items():
        try:
            found = runs.turn(name, system, "trial", words, limit_s=LIMIT_S, enough_s=ENOUGH_S)
            rates[setting] = round(found["rate"])
        except Failed as error:
            rates[setting] = str(error)
    worked = {setting: rate for setting, rate in rates.items() if not isinstance(rate, str)}
    if not worked:
        raise Failed("; ".join(f"{setting}: {why}" for setting, why in rates.items()))
    return max(worked, key=worked.__getitem__), rates


def a_round(runs: Runs, name: str, system: System, setting: Mapping[str, Any], found: dict[str, list[float]]) -> None:
    """One cold epoch and some warm ones in a process, the first batch of another, a stop and what comes after it."""
    stayed = forget(runs.folder(name))
    cold = runs.turn(name, system, "speed", setting, limit_s=LIMIT_S)
    state, ids = runs.folder(name).with_suffix(".state"), str(runs.folder(name).with_suffix(".ids.npy"))
    found["rate"].append(cold["rate"])
    found["cold"].append(cold["first_epoch"])
    found["pages_that_stayed"].append(stayed)
    if not state.exists():
        stopped = runs.turn(name, system, "stop", setting, batches=STOP, state=str(state), ids=ids)
        found["state_bytes"].append(stopped["state_bytes"])
        before = np.load(ids)
        resumed = runs.turn(name, system, "resume", setting, state=str(state), ids=ids)
        after = np.load(ids)
        counts = np.bincount(np.concatenate([before, after]), minlength=SAMPLES)
        found["lost"].append(int((counts == 0).sum()))
        found["repeated"].append(int((counts - 1).clip(0).sum()))
        found["shuffle_quality"].append(quality(before))
    else:
        resumed = runs.turn(name, system, "resume", setting, state=str(state))
    found["resume_ms"].append(1e3 * resumed["resume_s"])
    first = runs.turn(name, system, "first", setting)
    found["first_batch_ms"].append(1e3 * first["first_s"])


def summary(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians, and in brackets the least and the most of them."""
    digits = {"rate": 0, "cold": 0, "state_bytes": 0, "lost": 0, "repeated": 0, "shuffle_quality": 4}
    figures: dict[str, Any] = {}
    for name, values in found.items():
        rounded = [round(value, digits.get(name, 3)) for value in (statistics.median(values), min(values), max(values))]
        figures[name] = rounded[0]
        if len(values) > 1:
            figures[f"{name}_range"] = rounded[1:]
    return figures


def measure(runs: Runs, systems: dict[str, System], rounds: int) -> dict[str, Any]:
    """All figures; what fails is left out, with the reason."""
    left_out: dict[str, str] = {}
    chosen: dict[str, str] = {}
    about: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, list[float]]] = {}
    for name, system in systems.items():
        runs.folder(name).mkdir()
        try:
            packages = runs.turn(name, system, "write", {})["versions"]
            chosen[name], rates = fastest(runs, name, system)
        except Failed as error:
            left_out[name] = str(error)
            say(f"without {name}: {error}")
            continue
        size = sum(path.stat().st_size for path in runs.folder(name).rglob("*") if path.is_file())
        about[name] = {"what": system.words, "versions": packages, "megabytes_written": round(size / 1e6)}
        about[name] |= {"samples_per_s_by_setting": rates, "setting": chosen[name]}
        names = ("rate", "cold", "first_batch_ms", "resume_ms", "state_bytes", "shuffle_quality", "lost", "repeated")
        found[name] = {key: [] for key in (*names, "pages_that_stayed")}
        say(f"{name}: {rates}")
    limits = []
    for _ in range(rounds):
        for name in [one for one in systems if one in chosen]:
            try:
                a_round(runs, name, systems[name], systems[name].settings[chosen[name]], found[name])
            except Failed as error:
                left_out[name] = str(error)
                del chosen[name], found[name], about[name]
                say(f"without {name}: {error}")
        if "cordee" in chosen:
            limits.append(runs.turn("cordee", CORDEE, "limit", {}))
    loaders = {name: about[name] | summary(found[name]) for name in found}
    return {"loaders": loaders, "left_out": left_out, "take": limit_of(limits)}


def limit_of(limits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ours beside `np.take` on one core."""
    if not limits:
        return {}
    ratios = [ratio for one in limits for ratio in one["ratios"]]
    return {
        "what": "epochs of ours and of np.take from memory into one buffer, in turns, in one process on one core",
        "take": round(statistics.median(one["take_rate"] for one in limits)),
        "cordee": round(statistics.median(one["cordee_rate"] for one in limits)),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_of_each_round": [round(statistics.median(one["ratios"]), 3) for one in limits],
    }


def reached(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the goals ask for."""
    loaders = result["loaders"]
    if "cordee" not in loaders:
        return {}
    ours = loaders["cordee"]
    of_samples = {name: one["rate"] for name, one in loaders.items() if name in PEERS and not PEERS[name].whole_batches}
    by_hand = {name: one["rate"] for name, one in loaders.items() if name in PEERS and PEERS[name].whole_batches}
    figures = {name: ours[name] for name in ("shuffle_quality", "resume_ms", "state_bytes", "lost", "repeated")}
    figures["rate_over_take"] = result["take"]["ratio"]
    for words, rates in (("best_peer", of_samples), ("batches_by_hand", by_hand)):
        if rates:
            best = max(rates, key=rates.__getitem__)
            figures |= {words: best, f"rate_over_{words}": round(ours["rate"] / rates[best], 2)}
    return figures


def say(text: str) -> None:
    """At once."""
    print(text, file=sys.stderr, flush=True)


def show(result: Mapping[str, Any]) -> None:
    """A table for people."""
    heads = ("rate", "cold", "first_batch_ms", "resume_ms", "state_bytes", "shuffle_quality", "lost", "repeated")
    print(f"{'':>18}" + "".join(f"{head:>16}" for head in heads))
    for name, one in result["loaders"].items():
        print(f"{name:>18}" + "".join(f"{one[head]:>16,}" for head in heads) + f"  {one['setting']}")
    print("one core:", result["take"])
    print("reached:", result["reached"])


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=Path, default=PYTHON, help="the interpreter that has them installed")
    parser.add_argument("--only", choices=["cordee", *PEERS], action="append", help="these alone, nothing is recorded")
    parser.add_argument("--rounds", type=int, default=3, help="another number than 3 is not recorded")
    given = parser.parse_args()
    began = time.monotonic()
    systems = {name: one for name, one in {"cordee": CORDEE, **PEERS}.items() if name in (given.only or [name])}
    if set(systems) & set(PEERS) and not given.peers.exists():
        sys.exit(f"{given.peers} is not there: `make .venv-loaders/ready` installs the peers; or give --peers")
    folder = Path(tempfile.mkdtemp(prefix="loaders-"))
    try:
        # Absolute, not resolved: an environment's python is a link to that of the system.
        result = measure(Runs(folder, given.peers.absolute()), systems, given.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {**described("cordee"), **HOW, "batch": BATCH, "goals": GOALS, "reached": reached(result), **result}
    show(result)
    say(f"{time.monotonic() - began:.0f} s")
    if not given.only and given.rounds == 3:
        RESULTS.write_text(written(result))


if __name__ == "__main__":
    main()

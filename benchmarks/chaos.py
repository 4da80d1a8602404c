"""Faults at random over many runs, each of which must end as if there had been none: `python benchmarks/chaos.py`.

In each run some processes are killed (SIGKILL), paused (SIGSTOP) until the others have gone on or not, and woken up
again; several at once; while others regroup or come in. It hits workers, newcomers, parameter servers, launchers of
hosts, whole hosts, the coordinator, and in a twin the links of hosts. Some runs are given other numbers of workers in
between (`cordee scale`), which is no fault. In some the last fault leaves no worker, or kills the launcher
of the first host: such a run is resumed.

Every run is then audited, and compared with an undisturbed one of one process: samples of every step, losses and
parameters in fp64 to 1e-9, with `exact=true` bit by bit; under `sync=local` and `mode=stale`, which are not the
training of one process, the audit and the order of the samples. No process may outlive its run.

`--faults N --seed S` draws runs from seed S on until N faults have struck; the same seed draws the same run and faults,
though not the same instants. `--append` adds to what is recorded, and goes on with the next seed. What is wrong with a
run is printed, and its folder stays.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from peers.machine import described

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from cordee.twin.twin import missing
from trials.drawn import CASES, SCALE, draw
from trials.judged import Outcome, Trials
from warmer import serving

RESULTS = Path(__file__).parent / "results" / "chaos.json"


def fresh(seed: int) -> dict[str, Any]:
    """A record without any run."""
    return {
        "next_seed": seed,
        "faults": 0,
        "runs": 0,
        "resumed": 0,
        "kinds": {},
        "plans": {},
        "wrong": [],
        "hours": 0.0,
    }


def entered(record: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    """The record with one run more."""
    case, count = outcome.trial.case, sum(number for kind, number in outcome.kinds.items() if kind != SCALE)
    kinds = Counter(record["kinds"]) + outcome.kinds
    plans = {name: Counter(counts) for name, counts in record["plans"].items()}
    plans[f"{case.name}: {case.plan}"] = plans.get(f"{case.name}: {case.plan}", Counter()) + Counter(
        runs=1, faults=count
    )
    wrong = [{"seed": outcome.trial.seed, "what": list(outcome.wrong)}] if outcome.wrong else []
    return {
        **record,
        "next_seed": outcome.trial.seed + 1,
        "faults": record["faults"] + count,
        "runs": record["runs"] + 1,
        "resumed": record["resumed"] + outcome.resumed,
        "kinds": dict(sorted(kinds.items())),
        "plans": {name: dict(counts) for name, counts in sorted(plans.items())},
        "wrong": record["wrong"] + wrong,
        "hours": round(record["hours"] + outcome.seconds / 3600, 3),
    }


def show(outcome: Outcome) -> None:
    """One run, in some lines."""
    verdict = "WRONG" if outcome.wrong else "as it should be"
    resumed = f", resumed {outcome.resumed} times" if outcome.resumed else ""
    print(f"seed {outcome.trial.seed}: {outcome.trial.case.name}: {verdict} after {outcome.seconds:.1f} s{resumed}")
    for line in outcome.struck:
        print(f"    {line}")
    for line in outcome.wrong:
        print(f"  WRONG: {line}")
    sys.stdout.flush()


def main() -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=100, help="so many, of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--append", action="store_true", help="add to what is recorded")
    parser.add_argument("--only", help="plans whose name has this in it; nothing is recorded")
    parser.add_argument("--keep", type=Path, help="where folders of runs are; those that are wrong stay there")
    given = parser.parse_args()
    cases = tuple(one for one in CASES if (given.only or "") in one.name and not (one.twin and missing()))
    record = json.loads(RESULTS.read_text()) if given.append and RESULTS.exists() else fresh(given.seed)
    seed, until, begun = int(record["next_seed"]), time.monotonic() + 60 * given.minutes, int(record["faults"])
    folder = given.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cordee-") as private:
        os.environ["XDG_RUNTIME_DIR"] = private  # a warm server of our own
        with serving():
            trials, here = Trials(folder), fresh(seed)
            while int(record["faults"]) - begun < given.faults and time.monotonic() < until:
                outcome = trials.run(draw(seed, cases))
                show(outcome)
                record, here, seed = entered(record, outcome), entered(here, outcome), seed + 1
                if given.only is None:
                    RESULTS.write_text(json.dumps({**described(), **record}, indent=1) + "\n")
    print(json.dumps(here, indent=1))
    print(f"folders of runs: {folder}" if here["wrong"] else "every run was as it should be")
    sys.exit(1 if here["wrong"] else 0)


if __name__ == "__main__":
    main()

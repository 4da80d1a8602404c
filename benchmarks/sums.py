"""How much of the slowest link a sum over all hosts uses: `python benchmarks/sums.py [--workers 2]`, as root.

Three emulated hosts with one worker each, whose links have equal or unequal speeds, each way; or two hosts with two
workers each. A plain ring of gloo over all workers and Cordée's sums take turns. With two workers per host, one of them
sums for both; a third way is then a flat ring of Cordée's, as by `backend=gloo`.

A sum is timed from when all workers are ready until the last one has the result. No all-reduce of n hosts can take less
than 2 (n - 1) / n of the bytes at the speed of the slowest link; what part of the measured time this is, is the share.
Headers of TCP, IP and Ethernet alone cost 0.06 of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers.figures import written
from peers.machine import described
from peers.systems import HERE

from cordee.twin.cluster import Cluster
from cordee.twin.twin import missing

FOLDER = Path(__file__).parent / "results"
RESULTS = {1: FOLDER / "sums.json", 2: FOLDER / "sums_by_host.json"}
LINKS = {
    1: {"100,10,10": (0.35, 1.4, 5.6), "10,10,10": (0.35, 1.4, 5.6), "1000,100,100": (1.4, 5.6, 22.4)},
    2: {"100,100": (0.35, 1.4, 5.6), "1000,1000": (1.4, 5.6, 22.4)},
}
"""By workers per host: Mbit/s of the hosts' links, and the megabytes of the sums."""
HEAD = {
    "share": "the least time that an all-reduce takes on the slowest link, over the median of the measured times",
    "sums": "idle for 0.3 s before each; of Cordée's, one of 16 is sent without a limit",
}
WAYS = {1: ("ring", "ours"), 2: ("ring", "flat", "ours")}


def measured(links: str, workers: int, rounds: int) -> list[dict[str, Any]]:
    """Sums over hosts with these links, and so many workers each."""
    hosts = ", ".join(f"link={one}mbit workers={workers}" for one in links.split(","))
    slowest = min(float(one) for one in links.split(","))
    with tempfile.TemporaryDirectory(prefix="sums-") as folder:
        file = Path(folder) / "sums.json"
        words = ["twin", "run", "--script", "--hosts", hosts, "--out", f"{folder}/run", HERE / "summing.py", file]
        command = [sys.executable, "-m", "cordee", *map(str, [*words, rounds, *LINKS[workers][links]])]
        subprocess.run(command, stdout=subprocess.DEVNULL, timeout=1800, check=True)
        found: list[dict[str, Any]] = json.loads(file.read_text())
    count = len(Cluster.parse(hosts).names)
    for one in found:
        least_ms = one["megabytes"] * 8 / slowest * 2 * (count - 1) / count * 1e3
        one["least_ms"] = round(least_ms, 2)
        one["share"] = {way: round(least_ms / statistics.median(one["all_ms"][way]), 3) for way in WAYS[workers]}
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, choices=LINKS, default=1, help="of each host")
    parser.add_argument("--links", action="append", help="only these")
    parser.add_argument("--rounds", type=int, default=8, help="sums of each size and way")
    parser.add_argument("--record", type=Path, metavar="FILE", help="default for a full run: a file in results")
    given = parser.parse_args()
    if unknown := set(given.links or ()) - set(LINKS[given.workers]):
        parser.error(
            f"--links {unknown.pop()}: with --workers {given.workers} it is one of {list(LINKS[given.workers])}"
        )
    if lacking := missing():
        sys.exit(f"This benchmark needs emulated hosts, which cannot be made here: {'; '.join(lacking)}.")
    head = {"hosts": f"{given.workers} worker(s) on each, emulated on one machine", **HEAD}
    result: dict[str, Any] = {**described("cordee"), **head, "rounds": given.rounds, "links": {}}
    ways = WAYS[given.workers]
    print(
        f"links in Mbit/s   megabytes   share of the slowest link, and gradients on a host's link: {ways}", flush=True
    )
    for links in given.links or LINKS[given.workers]:
        result["links"][links] = measured(links, given.workers, given.rounds)
        for one in result["links"][links]:
            figures = "   ".join(f"{one['share'][way]:.3f} {one[f'{way}_sent']:.3f}" for way in ways)
            print(f"{links:>15} {one['megabytes']:>11}   {figures}", flush=True)
    if given.record is not None or not given.links:
        (given.record or RESULTS[given.workers]).write_text(written(result))


if __name__ == "__main__":
    main()

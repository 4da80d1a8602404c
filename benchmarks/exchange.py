"""A chain of hosts beside a broadcast and one transfer: `python benchmarks/exchange.py`, as root.

Four emulated hosts at 100 Mbit/s; one has 64 MB of random bytes. Ways take turns: to one host (the least that is
possible), to three by a broadcast and along a chain, `auto`, and a chain whose middle host is killed (SIGKILL) when
half has come. A time is from the first connection until the last host has said that its checksum agrees; probes of
`auto` come before it. Checksums of the sender's files are known, as they are of a store.

Then the words of a skewed text are counted, in one process and in several, with and without `combine`, and with a
process that is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.counting import Dying, total, words
from peers.figures import written
from peers.hosts import sent_bytes
from peers.machine import described
from peers.systems import HERE

import cordee
from cordee.twin.cluster import Cluster
from cordee.twin.network import address_of
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin, missing

RESULT = Path(__file__).parent / "results" / "exchange.json"
HOSTS, LINK_BYTES = "bcd", 100e6 / 8
WAYS = ("one host", "broadcast", "chain", "auto", "chain, one killed")
GOALS = {"broadcast": "about 3", "chain": "at most 1.2", "chain, one killed": "the rest complete"}
WAIT_S = 120.0


@contextlib.contextmanager
def receiving(twin: Twin, host: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`cordee data receive --keep` on a host; its process, and where it listens."""
    place = f"{address_of(twin.cluster, host)}:0"
    options = ["--listen", place, "--token-file", twin.entry.token_file, "--keep"]
    command = [sys.executable, "-m", "cordee", "data", "receive", folder / host, *options]
    with subprocess.Popen(twin.command(host, [*map(str, command)]), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[2]
        finally:
            process.kill()


def kill_halfway(process: subprocess.Popen[str], folder: Path, size: int) -> None:
    """As soon as half of the bytes have come."""
    ends = time.monotonic() + WAIT_S
    while sum(path.stat().st_size for path in folder.rglob(".cordee-part-*")) < size / 2:
        assert time.monotonic() < ends, "nothing came"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)


def once(twin: Twin, way: str, size: int) -> dict[str, Any]:
    """Send new bytes this way."""
    with tempfile.TemporaryDirectory(prefix="exchange-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "data").mkdir()
        (folder / "data/block").write_bytes(random.randbytes(size))
        hosts = {
            host: stack.enter_context(receiving(twin, host, folder))
            for host in (HOSTS[:1] if way == "one host" else HOSTS)
        }
        how = {"one host": "broadcast", "chain, one killed": "chain"}.get(way, way)
        places = [place for _, place in hosts.values()]
        command = [sys.executable, HERE / "sending.py", twin.entry.token_file, folder / "data", how, *places]
        before = sent_bytes(twin)
        with subprocess.Popen(twin.command("a", [*map(str, command)]), stdout=subprocess.PIPE, text=True) as sending:
            if way == "chain, one killed":
                kill_halfway(hosts["c"][0], folder / "c", size)
            answer, _ = sending.communicate(timeout=WAIT_S)
        links = {host: count - before[host] for host, count in sent_bytes(twin).items()}
        found: dict[str, Any] = json.loads(answer)
        same = {host: (folder / host / "data/block") for host in hosts}
        whole = (folder / "data/block").read_bytes()
        return {
            "how": found["how"],
            "s": round(found["seconds"], 3),
            "forecast_s": {way: round(one, 3) for way, one in found["forecasts"].items()},
            "complete": [host for host, path in same.items() if path.exists() and path.read_bytes() == whole],
            "sent_over_size": {host: round(count / size, 3) for host, count in links.items()},
        }


def measured(size: int, rounds: int) -> dict[str, Any]:
    """All ways, in turns."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    twin = Twin.up(Cluster.parse(f"{1 + len(HOSTS)} x link=100mbit"), Registry())
    try:
        for number in range(rounds):
            for way in WAYS:
                runs[way].append(once(twin, way, size))
                print(f"round {number + 1}: {way:<18} {json.dumps(runs[way][-1])}", flush=True)
    finally:
        twin.down()
    least = statistics.median(one["s"] for one in runs["one host"])
    return {
        way: {
            "s": [one["s"] for one in found],
            "times_one_host": round(statistics.median(one["s"] for one in found) / least, 3),
            "goal": GOALS.get(way, ""),
            "complete": sorted({"".join(one["complete"]) for one in found}),
            "last": found[-1],
        }
        for way, found in runs.items()
    }


def counted(lines: int) -> dict[str, Any]:
    """The words of a skewed text: equal to one process, with and without `combine`, and with one process killed."""
    draw, names = random.Random(0), [f"word{number}" for number in range(20_000)]
    weights = [1 / (1 + number) ** 1.2 for number in range(len(names))]
    with tempfile.TemporaryDirectory(prefix="exchange-") as name:
        paths = [Path(name) / f"text{number}" for number in range(4)]
        for path in paths:
            path.write_text("\n".join(" ".join(draw.choices(names, weights, k=12)) for _ in range(lines)) + "\nlast")
        expected = Counter(word for path in paths for word in path.read_text().split())
        dying = Dying(f"{name}/killed")
        runs = {
            "one process": cordee.data.map_reduce(paths, words, total, processes=0),
            "two processes": cordee.data.map_reduce(paths, words, total, processes=2),
            "combined": cordee.data.map_reduce(paths, words, total, total, processes=2),
            "combined, one killed": cordee.data.map_reduce(paths, dying.words, total, total, processes=2),
        }
        return {
            name: {
                "equal": dict(run) == expected,
                "s": round(run.counters.seconds, 2),
                "bytes_combined_over_mapped": round(run.counters.bytes_combined / run.counters.bytes_mapped, 4),
                "bytes_exchanged": run.counters.bytes_exchanged,
                "map_tries": run.counters.map_tries,
            }
            for name, run in runs.items()
        }


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=64.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=20_000, help="of each of four texts")
    parser.add_argument("--record", type=Path, metavar="FILE", help="default for a full run: a file in results")
    given = parser.parse_args()
    if lacking := missing():
        sys.exit(f"This benchmark needs emulated hosts, which cannot be made here: {'; '.join(lacking)}.")
    size = int(given.megabytes * 1e6)
    result: dict[str, Any] = {
        **described("cordee"),
        "hosts": "4, emulated on one machine, links of 100 Mbit/s, token and TLS",
        "megabytes": given.megabytes,
        "least_s": round(size / LINK_BYTES, 3),
        "ways": measured(size, given.rounds),
        "words": counted(given.lines),
    }
    for way, one in result["ways"].items():
        print(f"{way:<18} {one['times_one_host']:.2f} times one host; complete: {', '.join(one['complete'])}")
    for name, one in result["words"].items():
        print(f"{name:<22} {json.dumps(one)}")
    full = given.megabytes == 64.0 and given.rounds >= 3
    if given.record is not None or full:
        (given.record or RESULT).write_text(written(result))


if __name__ == "__main__":
    main()

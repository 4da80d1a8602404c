"""`cordee twin probe`: what the links of a twin really do, measured by a run on its hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from cordee.core.errors import CordeeError, UsageError
from cordee.twin import network
from cordee.twin.cluster import Cluster, written_rate
from cordee.twin.commands import RunRequest, occupied, started
from cordee.twin.faults import Say
from cordee.twin.processes import wait_for
from cordee.twin.twin import Twin

PORT = 29399
LONGEST_S = 600.0
_FIRST_WORD_S, _WORD_EVERY_S = 2.0, 10.0
_TOGETHER_S = 3.0
"""How long the others may take to end after one that failed: they may have more to say."""


def check(cluster: Cluster) -> None:
    """Refuse a cluster without a link between two hosts."""
    if len(cluster.hosts) < 2:
        raise UsageError("the probe measures links between hosts: expected at least two, such as --hosts 2")


def probe(twin: Twin, say: Say) -> dict[str, Any]:
    """All links, both ways at once, and a sum over all hosts: `{"links": [[from, to, Mbit/s, ms], ...], ...}`."""
    check(twin.cluster)
    if why := twin.lacking("link"):
        raise UsageError(f"there is nothing to measure: {why}")
    with occupied(twin, "probe"):
        if cut := network.cut_off(twin.name, twin.cluster.names):
            raise UsageError(
                f"the link of host {' and '.join(cut)} is cut: `cordee twin mend {cut[0]} --name {twin.name}` first"
            )
        file, out = twin.entry.folder / "probe.json", twin.entry.folder / "probe-run"
        file.unlink(missing_ok=True)
        shutil.rmtree(out, ignore_errors=True)
        request = RunRequest("run", Path(__file__).with_name("probing.py"), out, (str(file),), PORT)
        with (twin.entry.folder / "probe.log").open("wb+") as log:
            with started(twin, request, log) as processes:
                codes = wait(list(processes.hosts.values()), log, say)
            if any(codes) or not file.exists():
                raise CordeeError(f"the probe ended with codes {codes}: {_printed(log)[-1000:] or 'no output'}")
        measured: dict[str, Any] = json.loads(file.read_text())
        return measured


def wait(
    processes: Sequence[subprocess.Popen[bytes]], log: IO[bytes], say: Say, longest_s: float = LONGEST_S
) -> list[int | None]:
    """The exit codes once all have ended, or soon after one has failed; `CordeeError` after `longest_s`."""
    began, last_word_s = time.monotonic(), -_WORD_EVERY_S
    while any(process.poll() is None for process in processes):
        seconds = time.monotonic() - began
        if seconds > longest_s:
            raise CordeeError(f"the probe did not end within {longest_s:g} s. Its last words: {_last(log)}")
        if seconds >= _FIRST_WORD_S and seconds - last_word_s >= _WORD_EVERY_S:
            say(f"measuring, {seconds:.0f} s so far: {_last(log)}")
            last_word_s = seconds
        if any(process.poll() for process in processes):
            wait_for(processes, _TOGETHER_S)
            break
        time.sleep(0.05)
    return [process.poll() for process in processes]


def table(measured: dict[str, Any], cluster: Cluster) -> str:
    """For people to read."""
    lines = [f"{'from':>12} {'to':>12} {'Mbit/s':>10} {'nominal':>10} {'round trip':>12}"]
    for source, target, speed, milliseconds in measured["links"]:
        rates = [rate for name in (source, target) if (rate := cluster.host(name).link) is not None]
        nominal = written_rate(min(rates)) if rates else "-"
        lines.append(f"{source:>12} {target:>12} {speed:>10.2f} {nominal:>10} {milliseconds:>9.3f} ms")
    size, speed = measured["allreduce"]["bytes"] / 1e6, measured["allreduce"]["mbit_s"]
    return "\n".join([*lines, f"all-reduce of {size:.1f} MB: {speed:.2f} Mbit/s over each link, both ways"])


def _printed(log: IO[bytes]) -> str:
    """All that the hosts have printed so far; they write into the same open file, so its place is left alone."""
    return Path(log.name).read_text(errors="replace").strip()


def _last(log: IO[bytes]) -> str:
    return (_printed(log).splitlines() or ["the hosts are starting"])[-1]

"""`cordee twin probe`: what the links of a twin really do, measured by a run on its hosts."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from cordee.core.errors import CordeeError
from cordee.twin.cluster import Cluster, written_rate
from cordee.twin.run import Asked, commands
from cordee.twin.twin import Twin

PORT = 29399
LONGEST_S = 600.0


def probe(twin: Twin) -> dict[str, Any]:
    """All links, both ways at once, and a sum over all hosts: `{"links": [[from, to, Mbit/s, ms], ...], ...}`."""
    file = twin.entry.folder / "probe.json"
    file.unlink(missing_ok=True)
    out = twin.entry.folder / "probe-run"
    asked = Asked("run", Path(__file__).with_name("probing.py"), out, (str(file),), PORT)
    with contextlib.ExitStack() as stack:
        said = stack.enter_context((twin.entry.folder / "probe.log").open("w+"))
        running = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
            for command in commands(twin, asked).values()
        ]
        try:
            codes = [process.wait(LONGEST_S) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
        if any(codes) or not file.exists():
            said.seek(0)
            raise CordeeError(f"the probe ended with codes {codes}: {said.read().strip()[-1000:]}")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def table(found: dict[str, Any], cluster: Cluster) -> str:
    """For people to read."""
    lines = [f"{'from':>12} {'to':>12} {'Mbit/s':>10} {'nominal':>10} {'round trip':>12}"]
    for source, target, speed, milliseconds in found["links"]:
        rates = [rate for name in (source, target) if (rate := cluster.host(name).link) is not None]
        nominal = written_rate(min(rates)) if rates else "-"
        lines.append(f"{source:>12} {target:>12} {speed:>10.2f} {nominal:>10} {milliseconds:>9.3f} ms")
    summed = found["allreduce"]
    lines.append(
        f"all-reduce of {summed['bytes'] / 1e6:.1f} MB: {summed['mbit_s']:.2f} Mbit/s over each link, both ways"
    )
    return "\n".join(lines)

"""`cordee audit`: what the record of a run proves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cordee.cli.report import find_run
from cordee.core.errors import AuditError
from cordee.core.text import plain
from cordee.core.words import plural


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a run that has ended.", show_default=False)],
) -> None:
    """Prove from a run's record that it trained what one process would have: each sample, each step, each state."""
    from cordee.core.eventlog import read_events
    from cordee.watch.audit.prove import audit as prove

    folder = find_run(run)
    found = prove(read_events(folder / "events.jsonl"))
    for title, lines in (("proven", found.proven), ("not audited", found.unaudited)):
        for line in lines:
            print(plain(f"{title}: {line}"))
    for finding in found.findings:
        print(plain(f"wrong, step {finding.step}: {finding.text}"))
    if found.findings:
        first = found.findings[0]
        count = plural(len(found.findings), "finding")
        raise AuditError(
            f"{folder} is not what one process would have trained: {count}, the first at step {first.step}"
        )
    if found.missing:
        raise AuditError(f"{folder} proves nothing yet. Its record does not have {'; '.join(found.missing)}")

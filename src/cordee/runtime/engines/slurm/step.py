"""The task of a step: the launcher of a host. If the host of the batch script is gone, it lets the job begin anew."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from cordee.core.errors import CoordinatorLost
from cordee.runtime.engines import agent


def main() -> int:
    """`python -m cordee.runtime.engines.slurm.step [requeue]`, told by its standard input; the exit code."""
    code = agent.main()
    # Without its batch script an allocation stays until its time ends, as a lost host does not end the job.
    if code == CoordinatorLost.code and os.environ.get("ENVIRONMENT") == "BATCH":
        what = ("scontrol", "requeue") if "requeue" in sys.argv[1:] else ("scancel",)
        with contextlib.suppress(OSError):
            subprocess.run([*what, os.environ["SLURM_JOB_ID"]], stdin=subprocess.DEVNULL, check=False, timeout=60)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Where the house departs from its own rules, and why. These lists only shrink: an entry not needed any more fails."""

from __future__ import annotations

# (importing module, imported module): reason
FOLDER_ORDER: dict[tuple[str, str], str] = {
    ("cordee.runtime.api", "cordee.watch.progress"): "cordee.train() shows progress, as the command does",
    ("cordee.runtime.api", "cordee.watch.report"): "cordee.train() leaves a report, as the command does",
}

# path from the repository's root: lines it may have
LONG_MODULES: dict[str, int] = {}

# module:function: lines it may have
LONG_FUNCTIONS: dict[str, int] = {}

# module:function: parameters it may have
MANY_PARAMETERS: dict[str, int] = {
    "cordee.cli.main:train": 14,  # one an option of the command
    "cordee.cli.main:run": 13,
    "cordee.cli.bench:scaling": 13,
    "cordee.cli.twin:run": 10,
}

# (module, what could unpickle): why the bytes cannot come from elsewhere
UNPICKLING: dict[tuple[str, str], str] = {
    ("cordee.runtime.api", "cloudpickle"): "only packs: the job of a notebook, for its own workers",
    (
        "cordee.runtime.worker",
        "cloudpickle",
    ): "reads what its own launcher put into memory that only a descriptor leads to",
}

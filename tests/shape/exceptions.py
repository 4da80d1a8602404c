"""Where the house departs from its own rules, and why. These lists only shrink: an entry not needed any more fails."""

from __future__ import annotations

# (importing module, imported module): reason
FOLDER_ORDER: dict[tuple[str, str], str] = {
    ("cordee.runtime.api", "cordee.watch.progress"): "cordee.train() shows progress, as the command does",
    ("cordee.runtime.api", "cordee.watch.report"): "cordee.train() leaves a report, as the command does",
}

# path from the repository's root: (lines it may have, reason)
LONG_MODULES: dict[str, tuple[int, str]] = {}

# module:class: (lines it may have, reason)
LONG_CLASSES: dict[str, tuple[int, str]] = {}

# module:class: (public names it may have, reason)
MANY_NAMES: dict[str, tuple[int, str]] = {}

# module:function: (lines it may have, reason)
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}

# module:function: (parameters it may have, reason)
MANY_PARAMETERS: dict[str, tuple[int, str]] = {
    "cordee.cli.main:train": (18, "one per option of the command"),
    "cordee.cli.main:run": (13, "one per option of the command"),
    "cordee.runtime.api:train": (18, "one per option of the command"),
    "cordee.cli.bench:scaling": (17, "one per option of the command"),
    "cordee.cli.deploy:kubernetes": (16, "one per option of the command"),
    "cordee.cli.twin:run": (10, "one per option of the command"),
}

# (module, what could unpickle): why the bytes cannot come from elsewhere
UNPICKLING: dict[tuple[str, str], str] = {
    ("cordee.diagnose.preflight.memory", "pickle"): "takes a digest of what pickle writes, and reads none of it",
    ("cordee.feed.taskwire", "cloudpickle"): "the other end of its socket is the process that started it",
    ("cordee.runtime.sent", "cloudpickle"): "a worker reads what its launcher put into memory of the user's own",
}

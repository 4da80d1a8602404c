"""Other processes of this interpreter, and where user code finds its modules: Python's own modules always win.

`python -m` and `python -c` search the current folder first. A `queue.py` there would run in place of Python's own, with
the rights of the user who typed the command.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_RUN_MODULE = """import sys
if sys.path[0] == "":
    del sys.path[0]
del sys.argv[0]
import runpy
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""What `python -m` does, without the current folder. Python 3.11 has `-P` for it; 3.10 has not."""


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter; modules of the current folder are not found by it."""
    return [sys.executable, "-c", _RUN_MODULE, name, *arguments]


def search_in(folders: Iterable[str | Path]) -> None:
    """Let imports find modules in these folders too: after Python's own modules, before installed packages.

    A file such as `random.py` beside a job thus never replaces Python's, neither for PyTorch nor for the job.
    """
    added = [str(Path(folder).resolve()) for folder in folders]
    kept = [entry for entry in sys.path if entry not in added]
    # The compiled part of the standard library has a folder of its own.
    names = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("DESTSHARED")]
    own = {os.path.realpath(name) for name in names if name}
    place = max((at + 1 for at, entry in enumerate(kept) if os.path.realpath(entry) in own), default=0)
    sys.path[:] = [*kept[:place], *added, *kept[place:]]


def shadowed(error: BaseException, folder: Path) -> str:
    """What to do about an import that failed because of where modules are searched; empty for any other error."""
    if isinstance(error, AttributeError):
        name = getattr(error.obj, "__name__", "")
    else:
        name = (getattr(error, "name", None) or "") if isinstance(error, ImportError) else ""
    name = name.partition(".")[0]
    if name in sys.stdlib_module_names and _holds(folder, name):
        return f". {name} is a module of Python, which is imported instead of {folder / name}.py: rename that file"
    if isinstance(error, ModuleNotFoundError) and name and _holds(Path.cwd(), name):
        return f". {name} is in the current folder, which is not searched: set PYTHONPATH={Path.cwd()}"
    return ""


def _holds(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()

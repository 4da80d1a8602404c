"""Where in the user's own files an exception came from: for messages that are told without a stack trace."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

import torch

OURS = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).resolve().parents[1], Path(torch.__file__).parent))
"""What no user can mend."""


def place_of(error: BaseException) -> str:
    """`model.py, line 7, in helper`: the last line of the user's code on the way to the error; empty if there is none.

    Installed packages only count if there is no file of the user's own.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [one for one in frames if not one.filename.startswith((*OURS, "<frozen"))]
    own = [one for one in theirs if not _installed(one.filename)] or theirs
    return f"{_short(own[-1].filename)}, line {own[-1].lineno}, in {own[-1].name}" if own else ""


def _installed(file: str) -> bool:
    packages = "site-packages" in file or "dist-packages" in file
    return packages or file.startswith(sysconfig.get_path("stdlib") + os.sep)


def _short(file: str) -> str:
    """As seen from the folder in which the command was given, if it lies in there."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file


def is_users(thing: object) -> bool:
    """Whether a function, class or module is the user's own code: neither installed nor ours."""
    code = getattr(thing, "__code__", None)
    file = code.co_filename if code is not None else getattr(thing, "__file__", None)
    if file is None:  # a class; one without a module was made in a notebook or a text
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        file = getattr(module, "__file__", None)
        if module is not None and file is None:
            return module.__name__ == "__main__"
    return file is None or not (file.startswith((*OURS, "<frozen")) or _installed(file))

"""`import cordee` is cheap, changes nothing, and shows every public name when it is asked for."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys

import pytest

import cordee
from harness import DEADLINE_S
from shape.house import SOURCE

# Runs in a process of its own: an audit hook sees what an import does to the world.
LOOK = """
import json, os, signal, sys, threading, warnings
acts = []
watched = ("socket.", "subprocess.", "os.mkdir", "os.fork", "os.exec", "os.remove", "os.rename")
def hook(event, args):
    writing = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writing or event.startswith(watched):
        acts.append(event)
def world():
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    return dict(os.environ), os.getcwd(), list(warnings.filters), handlers, threading.active_count()
before = world()
sys.addaudithook(hook)
exec(sys.argv[1])
seen, after = list(acts), world()
heavy = sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[2].split(",")))
print(json.dumps({"acts": seen, "changed": before != after, "heavy": heavy}))
"""


def look(code: str, heavy: str) -> dict[str, object]:
    """What running `code` did, and which of the `heavy` modules came with it."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-B", "-c", LOOK, code, heavy]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


QUIET = {"acts": [], "changed": False, "heavy": []}


@pytest.mark.parametrize("module", ["cordee", "cordee.core.plan", "cordee.core.world", "cordee.core.events"])
def test_values_import_nothing_heavy(module: str) -> None:
    assert look(f"import {module}", "torch,numpy,yaml,rich,typer,cryptography,cloudpickle,safetensors") == QUIET


def test_the_command_line_imports_no_torch() -> None:
    assert look("import cordee.cli.main", "torch,numpy,cryptography,cloudpickle,safetensors") == QUIET


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import difflib", {"heavy": ["difflib"]}),
        ("import os; os.environ['X'] = '1'", {"changed": True}),
        ("import os; open(os.devnull, 'w')", {"acts": ["open"]}),
        ("import socket; socket.socket().close()", {"acts": ["socket.__new__"]}),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", {"changed": True}),
    ],
)
def test_side_effects_are_seen(code: str, seen: dict[str, object]) -> None:
    assert look(code, "difflib") == {**QUIET, **seen}


def test_every_public_name_is_there_and_train_is_the_function() -> None:
    for name in cordee.__all__:
        assert getattr(cordee, name) is not None
        assert name in dir(cordee)
    # The folder of the same name must not hide the function once it is imported.
    importlib.import_module("cordee.train.job")
    assert inspect.isfunction(cordee.train)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = cordee.trian

"""No path or address of somebody's machine in the text, and nothing that unpickles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shape.exceptions import UNPICKLING
from shape.house import ROOT, Module, imports, module, package, texts

MACHINE_PATH = re.compile(r"(?<![\w.~\-}])/(?:work|opt|root|home|mnt|Users)/[\w.]")
REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|https?://[^\s)]+/simple\b")

# Modules that run code out of the bytes they read, and calls that do so by themselves.
PICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "multiprocessing"}
OBJECT_CALLS = re.compile(
    r"(torch|dist|distributed|c10d)\.(load|save|\w+_object|\w+_object_list)|\w+_object_list|(all_)?gather_object"
)


def unpicklers(one: Module) -> Iterator[str]:
    """What in a module could unpickle."""
    for found in imports(one, frozenset()):
        top = found.target.split(".")[0]
        if top in PICKLERS:
            yield top
    for node in ast.walk(one.tree):
        if isinstance(node, ast.Call) and OBJECT_CALLS.fullmatch(ast.unparse(node.func)):
            yield ast.unparse(node.func)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


def test_no_machine_paths_and_no_registries() -> None:
    wrong = []
    for path in texts():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if MACHINE_PATH.search(line) or REGISTRY.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert wrong == []


def test_a_machine_path_is_seen() -> None:
    assert MACHINE_PATH.search("cd " + "/ho" + "me/anna/cordee")
    assert MACHINE_PATH.search('"' + "/wo" + 'rk/main"')
    assert REGISTRY.search("https://files.python" + "hosted.org/packages")
    assert not MACHINE_PATH.search("docs/opt-in/in-progress, https://example.org/home/page, $HOME/opt/x")


def test_nothing_unpickles_what_comes_from_elsewhere() -> None:
    assert {(one.name, what) for one in package() for what in unpicklers(one)} == set(UNPICKLING)


def test_an_unpickler_is_seen() -> None:
    source = """
def late():
    from pickle import loads
torch.load(path)
dist.broadcast_object_list(things)
np.load(path, allow_pickle=flag)
np.load(path, allow_pickle=False)
model.load(path)
"""
    assert list(unpicklers(module("m", source))) == [
        "pickle",
        "torch.load",
        "dist.broadcast_object_list",
        "allow_pickle",
    ]


def bare_starts(one: Module) -> Iterator[str]:
    """Commands of this interpreter that would search the current folder for modules."""
    for node in ast.walk(one.tree):
        words = [ast.unparse(word) for word in node.elts] if isinstance(node, ast.List) else []
        if words[:1] == ["sys.executable"] and words[1:2] != ["'-I'"]:
            yield one.name


def test_python_is_started_in_one_place() -> None:
    assert {name for one in package() for name in bare_starts(one)} == {"cordee.core.interpreter"}


def test_a_bare_start_is_seen() -> None:
    assert list(bare_starts(module("x", "[sys.executable, '-m', 'cordee']"))) == ["x"]

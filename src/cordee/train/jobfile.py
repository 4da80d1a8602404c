"""From a job file to a job: import it under another name, call its factory, fill in what `--set` says."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cordee.core.errors import JobError
from cordee.core.interpreter import search_in
from cordee.core.words import did_you_mean
from cordee.feed.reading import begin_others
from cordee.train.job import Job, Save, Stop

MODULE_NAME = "cordee_job"
"""Not `__main__`: a guarded main block of the file does not run in workers."""
_loading: Path | None = None
"""The job file whose lines run at this moment."""


def load_job(path: Path, settings: Mapping[str, str]) -> Job:
    """The job that the file defines as `job`, a `Job` or a function that makes one, with these settings.

    What it draws at random without a seed, to split data for instance, is the same on all workers and in all starts.
    """
    begin_others(0)  # torch's begins with the same number everywhere by itself
    with _as_a_job(path):
        return _load(path, settings)


@contextlib.contextmanager
def _as_a_job(path: Path) -> Iterator[None]:
    """The file's lines see no arguments of ours, open no session, and do not end this process."""
    global _loading
    arguments, sys.argv = sys.argv, [str(path)]
    former, _loading = _loading, path
    try:
        yield
    except SystemExit as end:
        raise JobError(
            f"{path} ended itself with sys.exit({end.code!r}) before it had made a job.{_hint(path)}"
        ) from end
    finally:
        sys.argv, _loading = arguments, former


def refuse_session() -> None:
    """Raise where a session is opened while a job file is loaded: code that is only looked at must not train."""
    if (path := _loading) is not None:
        raise JobError(f"{path} opens cordee.session(), so it is a script and no job: use cordee run {path}")


def _load(path: Path, settings: Mapping[str, str]) -> Job:
    module = _import(path)
    found = getattr(module, "job", None)
    if found is None:
        names = [name for name, value in vars(module).items() if isinstance(value, Job)]
        hint = f" It defines {', '.join(names)}: rename it to job" if names else _hint(path)
        raise JobError(
            f"{path} does not define `job`: expected job = cordee.Job(...) or def job(...) -> cordee.Job.{hint}"
        )
    left = dict(settings)
    if callable(found) and not isinstance(found, Job):
        found, left = _call(found, left, path)
    if not isinstance(found, Job):
        raise JobError(
            f"`job` in {path} is {type(found).__name__}: expected a cordee.Job or a function that returns one"
        )
    job = found.replace(name=path.stem) if found.name == "job" else found
    for name, text in left.items():
        job = _with(job, name, text)
    return job


def _hint(path: Path) -> str:
    """What to do with a file that calls cordee.session() somewhere; empty for any other."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, ValueError, SyntaxError):
        return ""
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    imported = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module == "cordee")
        for alias in node.names
    }
    ways = {f"{name}.session" for name, what in imported.items() if what == "cordee"}
    ways |= {name for name, what in imported.items() if what == "session"}
    return f" It calls cordee.session(): a script is started with cordee run {path}" if ways & called else ""


def _import(path: Path) -> Any:
    if not path.is_file():
        raise JobError(f"there is no job file {path.resolve()}: expected a Python file that defines `job`")
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise JobError(f"{path} is not a Python file: expected a name that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    search_in([path.resolve().parent])
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise JobError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    return module


def _call(factory: Any, settings: dict[str, str], path: Path) -> tuple[Any, dict[str, str]]:
    """Call the factory with those settings that are its arguments; the rest may be fields of the job."""
    signature = inspect.signature(factory)
    try:
        hints = typing.get_type_hints(factory)
    except NameError:
        hints = {}
    arguments = {}
    for name, parameter in signature.parameters.items():
        if name in settings:
            hint = hints.get(name)
            default = parameter.default if parameter.default is not parameter.empty else None
            arguments[name] = read_value(name, settings[name], hint, default)
        elif parameter.default is parameter.empty:
            raise JobError(f"job() in {path} needs {name}: give it with --set {name}=...")
    left = {name: text for name, text in settings.items() if name not in arguments}
    fields = {field.name for field in dataclasses.fields(Job)}
    for name in left:
        if name.partition(".")[0] not in fields:
            arguments_there = ", ".join(signature.parameters) or "it has none"
            raise JobError(
                f"--set {name}: neither an argument of job() ({arguments_there}) nor a field of the job."
                + did_you_mean(name, {*signature.parameters, *fields})
            )
    return factory(**arguments), left


def _with(job: Job, name: str, text: str) -> Job:
    """The job with one field set as `text` says, or with one field of a part of it: `stop.steps`."""
    field, dot, inner = name.partition(".")
    if not dot:
        return job.replace(**{name: _field_value(job, name, name, text)})
    _refuse_unknown(job, name, field)
    part = getattr(job, field)
    if not isinstance(part, Stop | Save):
        raise JobError(f"--set {name}: {field} has no fields of its own; stop and save have: --set stop.steps=100")
    return job.replace(**{field: dataclasses.replace(part, **{inner: _field_value(part, name, inner, text)})})


def _field_value(owner: Any, name: str, field: str, text: str) -> Any:
    """What `text` means for a field of a job, or of a part of it."""
    _refuse_unknown(owner, name, field)
    return read_value(name, text, typing.get_type_hints(type(owner))[field], getattr(owner, field))


def _refuse_unknown(owner: Any, name: str, field: str) -> None:
    known = {one.name for one in dataclasses.fields(owner)}
    if field not in known:
        what = type(owner).__name__.lower()
        raise JobError(
            f"--set {name}: a {what} has no such field.{did_you_mean(field, known)} Fields: {', '.join(sorted(known))}"
        )


def read_value(name: str, text: str, hint: Any, default: Any) -> Any:
    """The value meant by `text`, by the type of the argument or of its default."""
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind in (bool, int, float, str, type(None))]
    if not kinds and type(default) in (bool, int, float, str):
        kinds = [type(default)]
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for kind in (bool, int, float, str):
        if kind not in kinds:
            continue
        try:
            return _READERS[kind](text)
        except ValueError:
            continue
    if not kinds and (hint is None or hint is Path):
        return Path(text) if hint is Path else text
    wanted = " or ".join(_WANTED[kind] for kind in kinds) or getattr(hint, "__name__", str(hint))
    raise JobError(f"--set {name}={text}: expected {wanted}")


def _read_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
_READERS: dict[type, Any] = {bool: _read_bool, int: int, float: float, str: str}

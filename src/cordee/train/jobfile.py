"""From a job file to a job: import it under another name, call its factory, fill in what `--set` says."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cordee.core.errors import JobError
from cordee.core.interpreter import search_in
from cordee.core.words import did_you_mean
from cordee.feed.reading import begin_others
from cordee.train.job import Job

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
        module = _import(path)
        found, left = getattr(module, "job", None), dict(settings)
        if found is None:
            names = [name for name, value in vars(module).items() if isinstance(value, Job)]
            hint = f" It defines {', '.join(names)}: rename it to job" if names else _hint(path)
            raise JobError(
                f"{path} does not define `job`: expected job = cordee.Job(...) or def job(...) -> cordee.Job.{hint}"
            )
        if callable(found):
            found, left = _call(found, left, path)
        if not isinstance(found, Job):
            raise JobError(
                f"`job` in {path} is {type(found).__name__}: expected a cordee.Job or a function that returns one"
            )
        job = found.replace(name=path.stem) if found.name == "job" else found
        for name, text in left.items():
            job = _with(job, name, text)
        return job


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


def _hint(path: Path) -> str:
    """What to do with a file that calls cordee.session() somewhere; empty for any other."""
    text = path.read_text(encoding="utf-8", errors="replace")
    renamed = re.search(r"^\s*import cordee as (\w+)", text, re.MULTILINE)
    name = renamed.group(1) if renamed else "cordee"
    is_script = re.search(rf"\b{name}\.session\(|^\s*from cordee import .*\bsession\b", text, re.MULTILINE)
    return f" It calls cordee.session(): a script is started with cordee run {path}" if is_script else ""


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
    parameters = inspect.signature(factory).parameters
    hints: dict[str, Any] = {}
    with contextlib.suppress(NameError):
        hints = typing.get_type_hints(factory)
    arguments = {}
    for name, parameter in parameters.items():
        default = None if parameter.default is parameter.empty else parameter.default
        if name in settings:
            arguments[name] = read_value(name, settings[name], hints.get(name), default)
        elif parameter.default is parameter.empty:
            raise JobError(f"job() in {path} needs {name}: give it with --set {name}=...")
    left = {name: text for name, text in settings.items() if name not in arguments}
    fields = {field.name for field in dataclasses.fields(Job)}
    for name in left:
        if name.partition(".")[0] not in fields:
            near = did_you_mean(name, {*parameters, *fields})
            known = ", ".join(parameters) or "it has none"
            raise JobError(f"--set {name}: neither an argument of job() ({known}) nor a field of the job.{near}")
    return factory(**arguments), left


def _with(job: Job, name: str, text: str) -> Job:
    """The job with one field set as `text` says, or with one field of a part of it: `stop.steps`."""
    part, _, field = name.rpartition(".")
    owner: Any = {"": job, "stop": job.stop, "save": job.save}.get(part)
    if owner is None:
        raise JobError(f"--set {name}: {part} has no fields of its own; stop and save have: --set stop.steps=100")
    known = typing.get_type_hints(type(owner))
    if field not in known:
        what, near = type(owner).__name__.lower(), did_you_mean(field, known)
        raise JobError(f"--set {name}: a {what} has no such field.{near} Fields: {', '.join(sorted(known))}")
    changed = dataclasses.replace(owner, **{field: read_value(name, text, known[field], getattr(owner, field))})
    return job.replace(**{part: changed}) if part else changed


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_BOOLS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def read_value(name: str, text: str, hint: Any, default: Any) -> Any:
    """The value meant by `text`, by the type of the argument or of its default."""
    if hint is None and type(default) in _KINDS:
        hint = type(default)
    if hint is None or hint is Path:
        return text if hint is None else Path(text)
    kinds = typing.get_args(hint) or (hint,)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for kind in _KINDS:
        if kind in kinds:
            with contextlib.suppress(msgspec.ValidationError):
                return msgspec.convert(_BOOLS.get(text, text) if kind is bool else text, kind, strict=False)
    words = [words for kind, words in {**_KINDS, type(None): "none"}.items() if kind in kinds]
    raise JobError(f"--set {name}={text}: expected {' or '.join(words) or getattr(hint, '__name__', str(hint))}")

"""Which engine gives the places of a run (Ray, Spark, ...), and its settings, checked by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, get_type_hints

import msgspec

from cordee.core.errors import UsageError
from cordee.core.events import Listener
from cordee.core.words import did_you_mean
from cordee.runtime.wording import COMMAND, Wording

if TYPE_CHECKING:
    from cordee.runtime.launch import Launch
    from cordee.train.job import Job

ENGINES = {one: f"cordee.runtime.engines.{one}" for one in ("ray", "spark", "slurm", "kubernetes")}
"""The name of each engine, and its module, which is a `ClusterEngine`."""
TAKE_ALL = ("slurm",)
"""Engines that ask all places of a run to end, never one of them."""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class ClusterEngine(Protocol):
    """What the module of an engine has. It imports what it is built on (ray, pyspark) only in `run`."""

    Settings: type
    """A frozen dataclass: one field per setting, each with a default and its `help` in the field's metadata."""

    def run(self, launch: Launch, settings: Any, hear: Listener, job: Job | None) -> dict[str, Any]:
        """What `start.run` does, with the workers in places of this engine: the result, or an error that ended it."""


@dataclass(frozen=True)
class Chosen:
    """An engine, and what the user has set for it."""

    name: str
    settings: Any
    """Of the type that the engine's module calls `Settings`."""

    @property
    def takes_one(self) -> bool:
        """Whether a signal to a place is for that one alone."""
        return self.name not in TAKE_ALL

    @classmethod
    def parse(cls, name: str | None, given: Mapping[str, object] | None, wording: Wording = COMMAND) -> Chosen | None:
        """From what the user gave; None: Cordée starts the workers by itself."""
        if name is None:
            if given:
                raise UsageError(f"{wording.option('engine_settings')} needs {wording.option('engine')}")
            return None
        if name not in ENGINES:
            hint = did_you_mean(name, ENGINES)
            raise UsageError(f"{wording.option('engine', name)} is not known.{hint} Engines: {', '.join(ENGINES)}")
        return cls(name, read_settings(name, import_module(ENGINES[name]).Settings, given or {}))

    def run(self, launch: Launch, hear: Listener, job: Job | None) -> dict[str, Any]:
        """Run it to its end, on this engine."""
        engine = cast("ClusterEngine", import_module(ENGINES[self.name]))
        return engine.run(launch, self.settings, hear, job)


def read_settings(engine: str, kind: type, given: Mapping[str, object]) -> Any:
    """A value of the dataclass `kind` with what was given, text or values; refuses names and values that do not fit."""
    hints = get_type_hints(kind)
    known = [one.name for one in fields(kind)]
    values = {}
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"engine {engine} has no setting {name}.{hint} Settings: {', '.join(known)}")
        try:
            values[name] = msgspec.convert(value, hints[name], strict=not isinstance(value, str))
        except msgspec.ValidationError:
            expected = KINDS.get(hints[name], str(hints[name]))
            raise UsageError(f"engine {engine}: setting {name} was given {value!r}; expected {expected}") from None
    return kind(**values)

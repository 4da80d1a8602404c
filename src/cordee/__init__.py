"""Cordée trains an ordinary PyTorch model on the machines you have, as one big machine would."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordee import data as data
    from cordee import errors as errors
    from cordee import metrics as metrics
    from cordee import split as split
    from cordee.core.plan import Plan as Plan
    from cordee.core.world import World as World
    from cordee.feed.batch import Batch as Batch
    from cordee.runtime.api import train as train
    from cordee.runtime.join import session as session
    from cordee.state.load import load as load
    from cordee.train.callbacks import Callback as Callback
    from cordee.train.evaluate import predict as predict
    from cordee.train.gathering import gather as gather
    from cordee.train.job import Job as Job
    from cordee.train.job import Save as Save
    from cordee.train.job import Stop as Stop

__version__ = "0.1.0"

# Where each public name lives, in the order a reader meets them; an empty attribute is the module itself. Names
# are imported when they are first asked for, because importing torch takes seconds and `cordee --help` must not.
_PUBLIC = {
    "Job": ("cordee.train.job", "Job"),
    "Stop": ("cordee.train.job", "Stop"),
    "Save": ("cordee.train.job", "Save"),
    "Callback": ("cordee.train.callbacks", "Callback"),
    "Batch": ("cordee.feed.batch", "Batch"),
    "Plan": ("cordee.core.plan", "Plan"),
    "World": ("cordee.core.world", "World"),
    "train": ("cordee.runtime.api", "train"),
    "session": ("cordee.runtime.join", "session"),
    "gather": ("cordee.train.gathering", "gather"),
    "load": ("cordee.state.load", "load"),
    "predict": ("cordee.train.evaluate", "predict"),
    "data": ("cordee.data", ""),
    "metrics": ("cordee.metrics", ""),
    "split": ("cordee.split", ""),
    "errors": ("cordee.errors", ""),
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cordee' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    found = importlib.import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value  # so that the next look finds it without a call
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


class _Package(ModuleType):
    """This package, where `cordee.train` is the function even after the folder `cordee/train` was imported.

    Importing a submodule binds it as an attribute of its package, which would hide the function; a property stands
    before such a binding. Write `from cordee.train.job import Job`, which does not look at the attribute.
    """

    @property
    def train(self) -> Any:
        """The function that trains a job."""
        return __getattr__("train")

    @train.setter
    def train(self, module: ModuleType) -> None:
        """Leave the folder where imports find it, in `sys.modules`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, as ordinary modules do under cloudpickle: functions of a sent job use the name `cordee`."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package

"""Stands in for torchvision where its binary does not fit the torch beside it.

MosaicML Streaming imports it for the base class of its vision datasets, which are not used here.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

try:
    import torchvision  # noqa: F401
except (RuntimeError, ImportError):  # operator torchvision::nms does not exist
    for name in [one for one in sys.modules if one.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name] = module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__getattr__ = lambda attribute: MagicMock(name=attribute)  # type: ignore[method-assign]
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]

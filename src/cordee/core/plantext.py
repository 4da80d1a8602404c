"""Plans and their values as text: what is read from a command line or a file, and how values are shown."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

from cordee.core.damage import DAMAGE
from cordee.core.errors import PlanError


def written(value: Any) -> str:
    """The text that `Key.read` reads as `value`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return ":".join(written(one) for one in value)
    return f"{value!r}".removesuffix(".0") if isinstance(value, float) else str(value)


def shown(given: Any) -> str:
    """What was given, for a message: cut where it is long, nested deeply or holds itself."""
    return repr(written(given)) if isinstance(given, (bool, float)) else reprlib.repr(given)


def read_pairs(text: str) -> dict[str, str]:
    """The pairs of `key=value,...`."""
    values: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not name or not equals or not value:
            raise PlanError(f"plan {text!r}: {item!r} is not key=value. Expected auto, a .yaml file, or key=value,...")
        if name in values:
            raise PlanError(f"plan {text!r} gives {name!r} twice: {values[name]!r} and {value!r}. Keep one of them.")
        values[name] = value
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a plan's file."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"plan file {path.absolute()} could not be read: {error.strerror}.") from None
    except (yaml.YAMLError, *DAMAGE) as error:
        raise PlanError(f"plan file {path.absolute()} is not YAML: {str(error)[:500]}") from None
    if not isinstance(values, dict):
        raise PlanError(
            f"plan file {path.absolute()} holds {shown(values)}; expected a mapping of keys, such as share: equal."
        )
    return values

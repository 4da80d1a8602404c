"""What is wrong with a command line, said in one line, as all our errors are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cordee.core.words import did_you_mean, nearest

NEAR = 0.85
"""How alike a script's option must be to one of ours before we ask: --num-workers is not --workers."""


def complaint(error: Any, words: Sequence[str]) -> str:
    """The line for an error that typer raised over the words of the command line."""
    context = getattr(error, "ctx", None)
    more = f"`{context.command_path if context else 'cordee'} --help`"
    kind = type(error).__name__
    param = getattr(error, "param", None)
    if kind == "NoSuchOption":
        known = [name for one in context.command.params for name in one.opts] if context else []
        asked = did_you_mean(error.option_name, known)
        return f"{error.option_name}: there is no such option.{asked} All options: {more}"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: {_lower(str(error.format_message()).rstrip('.'))}"
    if kind == "MissingParameter" and param is not None:
        name = param.opts[0] if param.param_type_name == "option" else str(param.name).upper()
        meant = f" ({param.help.rstrip('.')})" if param.help else ""
        return f"{name} is missing{meant}. See {more}"
    if kind == "BadParameter" and param is not None:
        return f"{_given(param, words)}: expected {_expected(param)}"
    said = str(error.format_message()).rstrip(".")
    return f"{_lower(said)}{'' if said.endswith('?') else '.'} See {more}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _given(param: Any, words: Sequence[str]) -> str:
    """The option and its value as they were typed."""
    if param.param_type_name != "option":
        return str(param.name).upper()
    for place in reversed(range(len(words))):
        name, equals, value = words[place].partition("=")
        if name in param.opts:
            return f"{name} {value if equals else ' '.join(words[place + 1 : place + 2])}"
    return str(param.opts[0])


def _expected(param: Any) -> str:
    """What may stand behind an option, in words; typer keeps its type in different places in different versions."""
    kind = str(getattr(getattr(param, "type_descriptor", None), "annotation", None) or getattr(param, "type", ""))
    word = next((text for name, text in _KINDS.items() if name in kind.lower()), "a value")
    least, most = (
        next((found for one in (param, getattr(param, "type", None)) if (found := getattr(one, name, None))), None)
        for name in ("min", "max")
    )
    if least is not None and most is not None:
        return f"{word} from {least} to {most}"
    return f"{word} of at least {least}" if least is not None else word


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "path": "a path"}


def misplaced(arguments: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """Options that go to a script and look like a misspelt one of ours: what was given, and what may be meant."""
    given = list(arguments)
    names = sorted(known)
    found = []
    for place, word in enumerate(given):
        name, equals, _ = word.partition("=")
        near = nearest(name, names, cutoff=NEAR) if name.startswith("--") else ""
        if not near or name in names:
            continue
        behind = given[place + 1 : place + 2]
        value = f" {behind[0]}" if behind and not equals and not behind[0].startswith("-") else ""
        found.append((word + value, near))
    return found

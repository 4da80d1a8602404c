"""How the command line is used: help pages, and what is wrong with a command, in one line as all our errors are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cordee.core.errors import all_errors
from cordee.core.words import did_you_mean, nearest

READ_ON = "Keys of a plan: cordee plan. Exit codes: cordee --help, each with a page in docs/reference/exit-codes.md."
NEAR = 0.85
"""How alike a script's option must be to one of ours before we ask: --num-workers is not --workers."""


def polish_help(command: Any) -> Any:
    """The same command and those below it, with help pages that show no value behind switches and where to read on."""
    for one in command.params:
        if getattr(one, "is_flag", False):
            one.metavar = ""  # a switch takes no value, and its type says nothing
    inner = getattr(command, "commands", {})
    if "train" in inner:
        codes = ", ".join(f"{error.code} {error.title}" for error in all_errors())
        command.epilog = f"Exit codes: 0 all went well, 1 unexpected failure, {codes}.\n\nKeys of a plan: cordee plan."
    else:
        command.epilog = READ_ON
    for one in inner.values():
        polish_help(one)
    return command


def explain(error: Any) -> str:
    """The line for an error that typer raised over the words of the command line."""
    context = getattr(error, "ctx", None)
    more = f"`{context.command_path if context else 'cordee'} --help`"
    kind = type(error).__name__
    param = getattr(error, "param", None)
    message = str(error.format_message()).rstrip(".")
    lower = message[:1].lower() + message[1:]
    if kind == "NoSuchOption":
        known = [name for one in context.command.params for name in one.opts] if context else []
        hint = did_you_mean(error.option_name, known)
        return f"{error.option_name}: there is no such option.{hint} All options: {more}"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: {lower}"
    if kind == "MissingParameter" and param is not None:
        name = param.opts[0] if param.param_type_name == "option" else str(param.name).upper()
        meant = f" ({param.help.rstrip('.')})" if param.help else ""
        return f"{name} is missing{meant}. See {more}"
    return f"{lower}{'' if message.endswith('?') else '.'} See {more}"


def find_misspelt(arguments: Sequence[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """Options that go to a script and look like a misspelt one of ours: what was given, and what may be meant."""
    names = sorted(known)
    misspelt = []
    for place, word in enumerate(arguments):
        name, equals, _ = word.partition("=")
        near = nearest(name, names, cutoff=NEAR) if name.startswith("--") else ""
        if near and name not in names:
            behind = arguments[place + 1 : place + 2]
            value = f" {behind[0]}" if behind and not equals and not behind[0].startswith("-") else ""
            misspelt.append((word + value, near))
    return misspelt

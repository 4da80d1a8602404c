"""The help pages: what typer makes of our commands, without a value behind switches, and with where to read on."""

from __future__ import annotations

from typing import Any

from cordee.core.errors import all_errors

READ_ON = "Keys of a plan: cordee plan. Exit codes: cordee --help, each with a page in docs/reference/exit-codes.md."


def exit_codes() -> str:
    """Every exit code in a word."""
    named = [f"{error.code} {error.title}" for error in all_errors()]
    return f"Exit codes: 0 all went well, 1 unexpected failure, {', '.join(named)}."


def polished(command: Any) -> Any:
    """The same command and those below it, with help pages as we want them."""
    for one in command.params:
        if getattr(one, "is_flag", False):
            one.metavar = ""  # a switch takes no value, and its type says nothing
    inner = getattr(command, "commands", {})
    command.epilog = f"{exit_codes()}\n\nKeys of a plan: cordee plan." if "train" in inner else READ_ON
    made = command.get_help_option

    def help_option(context: Any) -> Any:
        option = made(context)
        if option is not None:
            option.metavar = ""
        return option

    command.get_help_option = help_option
    for one in inner.values():
        polished(one)
    return command

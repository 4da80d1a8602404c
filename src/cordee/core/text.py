"""Text from elsewhere (names of jobs, hosts, metrics and files, messages of user code) before it goes to a terminal."""

from __future__ import annotations


def plain(text: object) -> str:
    """The text without anything that could command a terminal: control characters are shown as Python writes them."""
    return "".join(map(_shown, str(text)))


def _shown(one: str) -> str:
    if one.isprintable() or one in "\n\t":
        return one
    return " " if one.isspace() and one > "\x9f" else one.encode("unicode_escape", "surrogatepass").decode()

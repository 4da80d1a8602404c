"""What comes from elsewhere cannot command a terminal."""

from __future__ import annotations

import io

import pytest

from cordee.cli import main
from cordee.core.text import plain
from cordee.watch.progress import ProgressView
from records import HOSTILE, event, made, start

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e\udcff"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("Cordée, 10 µs → 5 %, 模型", "Cordée, 10 µs → 5 %, 模型"),
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b31m\x07\r", "\\x9b31m\\x07\\r"),
        ("a\u00a0b", "a b"),
        ("abc\u202ecba\udcff", "abc\\u202ecba\\udcff"),
        (3, "3"),
    ],
)
def test_control_characters_are_shown(given: object, shown: str) -> None:
    assert plain(given) == shown
    assert plain(plain(given)) == shown


def test_progress_shows_names_and_messages_as_they_are_written() -> None:
    stream = io.StringIO()
    progress = ProgressView(stream)
    for one in (
        *start(0.0, 1, name=ESCAPES + HOSTILE),
        event("warning", 1.0, message=ESCAPES),
        event("failure", 1.0, worker=0, host=ESCAPES, reason=ESCAPES, left=1),
        event("epoch", 1.0, epoch=0, step=5, loss=1.0, validation={ESCAPES: 0.5}, ms=3.0),
    ):
        progress(made(one))
    said = stream.getvalue()
    assert said.count("\\x1b]0;owned\\x07") == 5 and said.isascii()
    assert all(one.isprintable() or one == "\n" for one in said)


def test_errors_show_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main._run(["train", f"{ESCAPES}.py"]) != 0
    said = capsys.readouterr().err
    assert "\\x1b]0;owned" in said and all(one.isprintable() or one == "\n" for one in said)

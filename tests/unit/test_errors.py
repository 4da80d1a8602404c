from __future__ import annotations

import re
from pathlib import Path

from cordee.core import errors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "exit-codes.md"
CLASSES: list[type[errors.CordeeError]] = [errors.CordeeError, *errors.all_errors()]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in CLASSES]
    assert len(set(codes)) == len(codes)
    assert codes == sorted(codes)
    # 126 and above belong to the shell, but for 130, which is its own word for Ctrl-C.
    assert all(0 < code < 126 or code == 130 for code in codes)


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    sections = {heading: body for heading, _, body in (part.partition("\n") for part in parts)}
    assert list(sections) == [f"{error.code}: {error.title}" for error in CLASSES]
    for error, body in zip(CLASSES, sections.values(), strict=True):
        assert f"`cordee.errors.{error.__name__}`" in body
        assert "**Usual causes.**" in body and "**What to do.**" in body


def test_errors_are_found_by_name() -> None:
    assert errors.error_named("PlanError") is errors.PlanError
    assert errors.error_named("NotOurs") is errors.CordeeError


def test_a_worker_failure_keeps_who_and_where() -> None:
    error = errors.WorkerFailed("boom", rank=1, host="a", traceback="Traceback ...")
    assert (str(error), error.rank, error.host, error.traceback, error.code) == ("boom", 1, "a", "Traceback ...", 20)

from __future__ import annotations

import pickle
from pathlib import Path

from cordee.core import errors

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference" / "exit-codes"
CLASSES: list[type[errors.CordeeError]] = [errors.CordeeError, *errors.all_errors()]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in CLASSES]
    assert len(set(codes)) == len(codes)
    assert codes == sorted(codes)
    # 126 and above belong to the shell, but for 130, which is its own word for Ctrl-C.
    assert all(0 < code < 126 or code == 130 for code in codes)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert {path.name for path in PAGES.iterdir()} == {f"{error.code}.md" for error in CLASSES}
    for error in CLASSES:
        page = (PAGES / f"{error.code}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {error.code}: {error.title}\n\n`cordee.errors.{error.__name__}`: ")
        for part in ("**Usual causes.**\n\n- ", "**What to do.** ", "**Example.**\n\n```console\n$ "):
            assert part in page, (error.code, part)


def test_errors_are_found_by_name() -> None:
    assert errors.error_named("PlanError") is errors.PlanError
    assert errors.error_named("NotOurs") is errors.CordeeError


def test_an_error_of_a_part_is_known_elsewhere_by_the_nearest_one_with_a_code() -> None:
    class Unreadable(errors.DataError):
        pass

    assert errors.kind_of_error(Unreadable("a.csv")) is errors.DataError
    assert all(errors.kind_of_error(kind("x")) is kind for kind in CLASSES)


def test_a_worker_failure_keeps_who_and_where() -> None:
    error = errors.WorkerFailed("boom", rank=1, host="a", traceback="Traceback ...")
    assert (str(error), error.rank, error.host, error.traceback, error.code) == ("boom", 1, "a", "Traceback ...", 20)


def test_the_next_step_stands_behind_the_message_and_can_be_named_later() -> None:
    error = errors.StorageError("the disk is full.")
    assert str(error) == "the disk is full."
    error.next_step = "to go on: free it"
    assert str(error) == "the disk is full; to go on: free it" and error.message == "the disk is full."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)

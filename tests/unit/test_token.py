"""The file that holds the secret of a run's hosts."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cordee.core.errors import SecurityError, UsageError
from cordee.group.token import read_token, write_token
from cordee.runtime.rendezvous import Rendezvous


def test_a_token_is_never_seen_in_part(tmp_path: Path) -> None:
    """Launchers that start at the same time on a new machine: one writes it, all read the same."""

    def start(_: int, path: Path) -> str:
        if not path.exists():
            with contextlib.suppress(UsageError):
                write_token(path)
        return read_token(path)

    with ThreadPoolExecutor(8) as pool:
        for number in range(100):
            path = tmp_path / str(number) / "token"
            assert len(set(pool.map(start, range(8), [path] * 8))) == 1
    assert {one.name for one in tmp_path.rglob("*") if one.is_file()} == {"token"}, "nothing is left beside it"


def test_the_first_launchers_of_a_machine_share_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    given = Rendezvous.parse("127.0.0.1:29400", 2, None, trusted_network=False)
    with ThreadPoolExecutor(8) as pool:
        assert len({one.token for one in pool.map(lambda _: given.address(), range(8))}) == 1


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    write_token(tmp_path / "token")
    with pytest.raises(UsageError, match="exists already"):
        write_token(tmp_path / "token")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        read_token(tmp_path / "token")

"""The secret that the hosts of a run share, in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cordee.core.errors import SecurityError, UsageError

LEAST_LENGTH = 32


def read_token(path: Path) -> str:
    """The token in a file that no other user may read."""
    try:
        mode = path.stat().st_mode & 0o077
        token = path.read_text().strip()
    except OSError as error:
        raise SecurityError(
            f"the token file {path} cannot be read: {error.strerror}. Make one with `cordee token {path}`"
        ) from error
    if mode:
        raise SecurityError(f"the token file {path} can be read by others: run chmod 600 {path}")
    if len(token) < LEAST_LENGTH:
        raise SecurityError(
            f"the token in {path} has {len(token)} characters, but {LEAST_LENGTH} are needed: `cordee token {path}`"
        )
    return token


def default_token_file() -> Path:
    """Where this user's token lies unless told otherwise."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "cordee" / "token"


def write_token(path: Path) -> None:
    """A fresh token that only this user can read; an existing file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        os.link(making, path)  # whole or not at all: another launcher may look for it now
    except FileExistsError:
        raise UsageError(f"{path} exists already: remove it first if you want a new token") from None
    finally:
        making.unlink()

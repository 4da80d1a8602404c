"""`cordee doctor` on this machine, as users type it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import RendezvousError, SecurityError
from harness import command

STATES = {"ok", "warning", "error"}
ALWAYS = {
    "packages",
    "torch",
    "devices",
    "cores",
    "memory",
    "shared memory",
    "disk",
    "bf16 on cpu",
    "fp16 on cpu",
    "C++ compiler",
    "interfaces",
    "encryption",
    "token",
    "twin",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Folders of our own for tokens, and caches."""
    mine = {name: str(tmp_path / name) for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    return {**{key: value for key, value in os.environ.items() if key != "CORDEE_TOKEN_FILE"}, **mine}


def checks(ended: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """What was printed, by the name of the check."""
    assert "Traceback" not in ended.stderr, ended.stderr
    return {one["check"]: one for one in json.loads(ended.stdout)}


def test_a_whole_look_at_this_machine(environment: dict[str, str], tmp_path: Path) -> None:
    ended = command("doctor", "--json", "--quick", env=environment, cwd=tmp_path)
    found = checks(ended)
    assert found.keys() >= ALWAYS
    for one in found.values():
        assert one.keys() == {"check", "state", "found", "advice"}
        assert one["state"] in STATES and one["found"]
        assert one["state"] == "ok" or one["advice"], one
        assert "this check itself failed" not in one["found"], one
    # These tests run here at all.
    for name in ("packages", "torch", "disk", "encryption", "token"):
        assert found[name]["state"] == "ok", found[name]
    assert str(tmp_path) in found["disk"]["found"]
    assert ended.returncode == 0 or any(one["state"] == "error" for one in found.values())


def test_a_busy_port_and_an_open_token_file_are_errors(environment: dict[str, str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        ended = command(
            "doctor", "--json", "--quick", "--port", str(number), "--token-file", token, env=environment, cwd=tmp_path
        )
    found = checks(ended)
    assert found["port"]["state"] == "error"
    assert f"{number} is in use by" in found["port"]["found"] and f"(process {os.getpid()})" in found["port"]["found"]
    assert found["token"]["state"] == "error"
    assert f"chmod 600 {token}" in found["token"]["found"]
    assert ended.returncode in (RendezvousError.code, 1), "the port comes before the token; 1: no torch for this GPU"


def test_the_table_ends_with_a_count(environment: dict[str, str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short")
    token.chmod(0o600)
    ended = command("doctor", "--quick", "--token-file", token, env={**environment, "COLUMNS": "100"}, cwd=tmp_path)
    assert "Traceback" not in ended.stderr
    assert ended.returncode in (SecurityError.code, 1), ended.stderr
    lines = ended.stdout.splitlines()
    assert any(line.startswith("error") and "token" in line for line in lines), ended.stdout
    assert " error" in lines[-1] and "checks" in lines[-1]


def test_a_port_that_is_none_is_refused() -> None:
    ended = command("doctor", "--port", "70000")
    assert ended.returncode == 2
    assert "--port" in ended.stderr and "65535" in ended.stderr and "Traceback" not in ended.stderr

"""Every run of this folder starts from the warm server, whichever test asks for it first."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def from_the_warm_server(warm: int) -> None:
    """The server is there before the test begins."""

"""Sends a folder to hosts, says when half of it is there, and goes no further: TOKEN_FILE FOLDER HALF HOST..."""

from __future__ import annotations

import sys
from pathlib import Path

from cordee.feed.exchange import send as module
from cordee.feed.exchange.access import Access
from exchanging import Gated

token, folder, half, *hosts = sys.argv[1:]
Gated.limit = int(half)
module.Folder = Gated  # type: ignore[misc]
module.send(folder, hosts, how="chain", access=Access(Path(token).read_text(), 5.0))

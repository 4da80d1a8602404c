"""Sends a folder from an emulated host, and prints how it went as JSON: TOKEN_FILE FOLDER HOW HOST:PORT..."""

from __future__ import annotations

import json
import sys

import msgspec

from cordee.feed.exchange.access import Access
from cordee.feed.exchange.send import send

token_file, folder, how, *hosts = sys.argv[1:]
sent = send(folder, hosts, how=how, access=Access.of(token_file, hosts, silence_s=10.0))
print(json.dumps(msgspec.to_builtins(sent)))

"""Where the members of a generation find each other: a store as torch knows it, over our own channel."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from cordee.group.channel import Channel
from cordee.group.messages import Get, Value


class HubStore(dist.Store):  # type: ignore[name-defined, misc]
    """What gloo needs to find its peers, over our own (authenticated) channel."""

    def __init__(self, channel: Channel, generation: int, deadline_s: float, purpose: str) -> None:
        """Keys of one `purpose` (which group is formed) in one generation."""
        super().__init__()
        self._channel, self._generation, self._deadline_s = channel, generation, deadline_s
        # By generation: a thread that still forms a group that broke may say something late.
        self._prefix = f"{generation}/{purpose}"

    def set(self, key: str, value: Any) -> None:
        """Publish a value."""
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._channel.send(Value(f"{self._prefix}/{key}", raw))

    def get(self, key: str) -> bytes:
        """A value that a peer published, waiting for it."""
        name, channel = f"{self._prefix}/{key}", self._channel
        if name not in channel.values:
            channel.send(Get(name))
            channel.require(
                lambda: name in channel.values or channel.broken >= self._generation,
                self._deadline_s,
                f"a peer's address ({name})",
            )
        value = channel.values.get(name)
        if value is None:
            raise RuntimeError(f"generation {self._generation} broke while it was formed")
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all of these are there."""
        for key in keys:
            self.get(key)

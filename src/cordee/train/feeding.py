"""What a worker tells of where its samples came from."""

from __future__ import annotations

from typing import Any

from cordee.core.events import FeedEvent
from cordee.feed.counted import HERE
from cordee.group.team import Team

_FIELDS = [name for name in FeedEvent.__struct_fields__ if name not in ("time", "worker")]


class Fed:
    """Sends the counters of this process for the record of its run, when there is news."""

    def __init__(self, team: Team) -> None:
        """Nothing was sent yet; without a cache, nothing ever is."""
        self._channel = team.channel
        self._last = FeedEvent(team.channel.worker)

    def send(self) -> None:
        """Send what came from where since the start of this process."""
        counted = HERE.to_dict()
        event = FeedEvent(self._channel.worker, **{name: _short(counted[name]) for name in _FIELDS})
        if event != self._last:
            self._last = event
            self._channel.post(event)


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value

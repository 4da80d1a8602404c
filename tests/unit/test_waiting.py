"""Waiting for a collective: what is late is not lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from cordee.group.transport.gloo import GlooWork
from cordee.group.transport.seam import LostInMessage


class Late(dist.Work):
    """Comes to its end, well or not, just after a wait for it has timed out."""

    def __init__(self, after: int, error: str = "") -> None:
        super().__init__()
        self.left, self.error = after, error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self.left:
            self.left -= 1
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)
        return True

    def is_completed(self) -> bool:
        return self.left == 0


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_collective_that_ends_right_after_a_look_has_not_failed(after: int) -> None:
    late = Late(after)
    GlooWork(late).wait(lambda: False)
    assert late.is_completed()


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_collective_that_failed_says_why(after: int) -> None:
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        GlooWork(Late(after, "Connection closed by peer")).wait(lambda: False)


def test_a_collective_that_never_ends_is_left_once_a_peer_was_lost() -> None:
    with pytest.raises(LostInMessage):
        GlooWork(Late(9)).wait(lambda: True)

"""Makes a worker die, wait or lose a result at an exact place of its life in the team; imported by jobs and scripts.

`acts` is JSON: worker → place → [act, word, ...]. A worker that comes to a place leaves a word there, the file
`PLACE.WORKER` in the folder, and it acts when all the words that follow the act are there; the word `broken` is there
when this worker knows that its generation is broken. Places, and the acts that some of them have of their own:

    share-K, shared-K    the K-th time that the first member's tensors are given to all: before it, after it
    cast-K-N             before the N-th tensor of it is sent
    agree-P, agreed-P    agreement number P + 1: all is sent and nothing awaited; its result is here. `lose` at agree-P:
                         the result does not arrive; this worker leaves the word lost-P
    sums-G, layers-G     before the first and the second group of generation G is made
    say-G-N, said-G-N    the N-th time that it tells the others where it is: 1 for the first group, 2 for the second,
                         said by threads, 3, 4 and 5 for what its device, its host and its memory are
    ready-G              generation G is over for this worker: it waits for the next one
    formed-G, handed-G   both are made, the hand-over follows; it is over
    give-G-K             before the K-th tensor of the hand-over of generation G

Acts everywhere: `wait` for the words, `die` by SIGKILL, `halt` by SIGSTOP, whereupon the launcher puts it out, and
`fall`: the worker goes on, and dies a moment after the words are there. What a worker was told when generation G began
is in the file go-G.WORKER.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from torch import Tensor

from cordee.group.comm import Comm
from cordee.group.lines import Lines
from cordee.group.membership import Membership
from cordee.group.store import HubStore
from cordee.group.team import Team

PATIENCE_S = 60.0
FALL_S = 0.3


class Places:
    """What one worker does at which place."""

    def __init__(self, folder: str | Path, acts: str) -> None:
        self.folder = Path(folder)
        self.acts: dict[str, dict[str, list[str]]] = json.loads(acts)
        self.counts: dict[str, int] = {}
        self.handing_over = False

    def count(self, what: str) -> int:
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]

    def come(self, who: Any, place: str) -> str:
        """Leave the word of this place, and act; the act, for those that a place does by itself."""
        self.leave(who, place)
        act, *words = self.acts.get(str(who.worker), {}).pop(place, [""])
        if act == "fall":
            threading.Thread(target=self.die, args=(who, words, FALL_S), daemon=True).start()
        elif act == "die":
            self.die(who, words)
        for word in words if act in ("wait", "lose", "halt") else ():
            self.hear(who, word)
        if act == "halt":
            os.kill(os.getpid(), signal.SIGSTOP)
        return act

    def die(self, who: Any, words: Sequence[str], after_s: float = 0.0) -> None:
        for word in words:
            self.hear(who, word)
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, who: Any, word: str, content: str = "") -> None:
        (self.folder / f"{word}.{who.worker}").write_text(content)

    def hear(self, who: Any, word: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (who.broken if word == "broken" else (self.folder / word).exists()):
            assert time.monotonic() < deadline, f"worker {who.worker} waited in vain for {word}"
            time.sleep(0.001)


def place(kind: type[Team], folder: str | Path, acts: str) -> None:
    """Let all ropes of this kind come to places and act there."""
    if acts:
        at = Places(folder, acts)
        _at_agreements(kind, at)
        _at_regroupings(kind, at)
        _at_addresses(at)


def _at_agreements(kind: type[Team], at: Places) -> None:
    settle, share, cast = kind.settle, kind.share_from_first, Comm.broadcast

    def placed_settle(team: Team, works: Sequence[Any], result: Sequence[Tensor], *, void: bool = False) -> bool:
        position = team.position
        if at.come(team.membership, f"agree-{position}") == "lose":
            for handle in works:
                handle.wait()
            for tensor in result:
                tensor.fill_(77)
            works, void = (), True
            at.leave(team.membership, f"lost-{position}")
        done = settle(team, works, result, void=void)
        if done:
            at.come(team.membership, f"agreed-{position}")
        return done

    def placed_share(team: Team, tensors: Sequence[Tensor]) -> bool:
        number = at.count("share")
        at.come(team.membership, f"share-{number}")
        same = share(team, tensors)
        at.come(team.membership, f"shared-{number}")
        return same

    def placed_cast(comm: Comm, tensor: Tensor, root: int) -> Any:
        who = comm.membership
        if at.handing_over:
            at.come(who, f"give-{who.generation}-{at.count(f'give-{who.generation}')}")
        else:
            sharing = f"cast-{at.counts['share']}"
            at.come(who, f"{sharing}-{at.count(sharing)}")
        return cast(comm, tensor, root)

    kind.settle, kind.share_from_first = placed_settle, placed_share  # type: ignore[method-assign]
    Comm.broadcast = placed_cast  # type: ignore[method-assign]


def _at_regroupings(kind: type[Team], at: Places) -> None:
    advance, connect, hand_over = Membership.advance, Lines._connect, kind._hand_over

    def placed_advance(who: Membership, committed: int, *, admits: bool = False) -> Any:
        at.come(who, f"ready-{who.generation}")
        go = advance(who, committed, admits=admits)
        at.leave(who, f"go-{go.generation}", json.dumps(msgspec.structs.asdict(go)))
        return go

    def placed_connect(lines: Lines, comm: Comm, purpose: str) -> None:
        at.come(lines._membership, f"{purpose}-{lines._membership.generation}")
        connect(lines, comm, purpose)

    def placed_hand_over(team: Team, go: Any, awaited: Sequence[Tensor]) -> bool:
        at.come(team.membership, f"formed-{go.generation}")
        at.handing_over = True
        behind = hand_over(team, go, awaited)
        at.handing_over = False
        at.come(team.membership, f"handed-{go.generation}")
        return behind

    Lines._connect, kind._hand_over = placed_connect, placed_hand_over  # type: ignore[method-assign]
    Membership.advance = placed_advance  # type: ignore[method-assign]


def _at_addresses(at: Places) -> None:
    say = HubStore.set

    def placed_say(store: HubStore, key: str, value: Any) -> None:
        whose = SimpleNamespace(worker=store._channel.worker, broken=False)
        number = f"{store._generation}-{at.count(f'say-{store._generation}')}"
        at.come(whose, f"say-{number}")
        say(store, key, value)
        at.come(whose, f"said-{number}")

    HubStore.set = placed_say  # type: ignore[method-assign]

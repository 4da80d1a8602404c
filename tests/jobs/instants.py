"""Makes a worker die, wait or lose a result at an exact place of its life on the rope; imported by jobs and scripts.

`acts` is JSON: worker → place → [act, word, ...]. A worker that comes to a place leaves a word there, the file
`PLACE.WORKER` in the folder, and it acts when all the words that follow the act are there; the word `broken` is there
when this worker knows that its generation is broken. Places, and the acts that some of them have of their own:

    share-K, shared-K    the K-th time that the first member's tensors are given to all: before it, after it
    cast-K-N             before the N-th tensor of it is sent
    agree-P, agreed-P    agreement number P + 1: all is sent and nothing awaited; its result is here. `lose` at agree-P:
                         the result does not arrive; this worker leaves the word lost-P
    sums-G, layers-G     before the first and the second group of generation G is made
    say-G-N, said-G-N    the N-th time that it tells the others where it is: 1 for the first group, 2 for the second,
                         said by threads, 3 and 4 for what its device and its memory are
    formed-G, handed-G   both are made, the hand-over follows; it is over
    give-G-K             before the K-th tensor of the hand-over of generation G

Acts everywhere: `wait` for the words, `die` by SIGKILL, `halt` by SIGSTOP, whereupon the launcher puts it out, and
`fall`: the worker goes on, and dies a moment after the words are there. What a worker was told when generation G began
is in the file go-G.WORKER.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from cordee.group.rope import Rope
from cordee.group.store import HubStore

PATIENCE_S = 60.0
FALL_S = 0.3


class Places:
    """What one worker does at which place."""

    def __init__(self, folder: str | Path, acts: str) -> None:
        self.folder = Path(folder)
        self.acts: dict[str, dict[str, list[str]]] = json.loads(acts)
        self.counts: dict[str, int] = {}

    def count(self, what: str) -> int:
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]

    def come(self, rope: Any, place: str) -> str:
        """Leave the word of this place, and act; the act, for those that a place does by itself."""
        self.leave(rope, place)
        act, *words = self.acts.get(str(rope.worker), {}).pop(place, [""])
        if act == "fall":
            threading.Thread(target=self.die, args=(rope, words, FALL_S), daemon=True).start()
        elif act == "die":
            self.die(rope, words)
        for word in words if act in ("wait", "lose", "halt") else ():
            self.hear(rope, word)
        if act == "halt":
            os.kill(os.getpid(), signal.SIGSTOP)
        return act

    def die(self, rope: Any, words: Sequence[str], after_s: float = 0.0) -> None:
        for word in words:
            self.hear(rope, word)
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, rope: Any, word: str, content: str = "") -> None:
        (self.folder / f"{word}.{rope.worker}").write_text(content)

    def hear(self, rope: Any, word: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (rope.broken if word == "broken" else (self.folder / word).exists()):
            assert time.monotonic() < deadline, f"worker {rope.worker} waited in vain for {word}"
            time.sleep(0.001)


def place(kind: type[Rope], folder: str | Path, acts: str) -> None:
    """Let all ropes of this kind come to places and act there."""
    if acts:
        at = Places(folder, acts)
        _at_agreements(kind, at)
        _at_regroupings(kind, at)
        _at_addresses(at)


def _at_agreements(kind: type[Rope], at: Places) -> None:
    settle, share, cast = kind.settle, kind.share_from_first, kind._start_broadcast

    def placed_settle(rope: Rope, works: Sequence[Any], result: Sequence[Tensor], *, void: bool = False) -> bool:
        position = rope.position
        if at.come(rope, f"agree-{position}") == "lose":
            for work in works:
                rope.wait(work)
            for tensor in result:
                tensor.fill_(77)
            works, void = (), True
            at.leave(rope, f"lost-{position}")
        done = settle(rope, works, result, void=void)
        if done:
            at.come(rope, f"agreed-{position}")
        return done

    def placed_share(rope: Rope, tensors: Sequence[Tensor]) -> bool:
        number = at.count("share")
        at.come(rope, f"share-{number}")
        same = share(rope, tensors)
        at.come(rope, f"shared-{number}")
        return same

    def placed_cast(rope: Rope, tensor: Tensor, root: int, *, force: bool = False) -> Any:
        if force:
            at.come(rope, f"give-{rope.generation}-{at.count(f'give-{rope.generation}')}")
        else:
            sharing = f"cast-{at.counts['share']}"
            at.come(rope, f"{sharing}-{at.count(sharing)}")
        return cast(rope, tensor, root, force=force)

    kind.settle, kind.share_from_first = placed_settle, placed_share  # type: ignore[method-assign]
    kind._start_broadcast = placed_cast  # type: ignore[method-assign]


def _at_regroupings(kind: type[Rope], at: Places) -> None:
    form, make_group, hand_over = kind._form, kind._make_group, kind._hand_over

    def placed_form(rope: Rope, go: Any) -> None:
        at.leave(rope, f"go-{go.generation}", json.dumps(dataclasses.asdict(go)))
        form(rope, go)

    def placed_make_group(rope: Rope, purpose: str) -> Any:
        at.come(rope, f"{purpose}-{rope.generation}")
        return make_group(rope, purpose)

    def placed_hand_over(rope: Rope, go: Any, awaited: Sequence[Tensor]) -> bool:
        at.come(rope, f"formed-{go.generation}")
        behind = hand_over(rope, go, awaited)
        at.come(rope, f"handed-{go.generation}")
        return behind

    kind._form, kind._make_group, kind._hand_over = placed_form, placed_make_group, placed_hand_over  # type: ignore[method-assign]


def _at_addresses(at: Places) -> None:
    say = HubStore.set

    def placed_say(store: HubStore, key: str, value: Any) -> None:
        whose = SimpleNamespace(worker=store._channel.worker, broken=False)
        number = f"{store._generation}-{at.count(f'say-{store._generation}')}"
        at.come(whose, f"say-{number}")
        say(store, key, value)
        at.come(whose, f"said-{number}")

    HubStore.set = placed_say  # type: ignore[method-assign]

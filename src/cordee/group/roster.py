"""Who is on the team, as values: which workers form the next generation, and from which point they go on.

Nothing here touches a socket or a process. The hub feeds in what happened and carries out what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Go:
    """The next generation, decided: every member gets this same value."""

    generation: int
    members: tuple[int, ...]
    """Worker ids in rank order; a worker's id never changes, its rank is its place in here."""
    target: int
    """How many agreements (steps, evaluations) every member has committed after the hand-over."""
    giver: int | None
    """The worker that hands the result of agreement number `target` to those behind; None if none is behind."""


@dataclass(frozen=True)
class Roster:
    """The members of a run: who is alive, and how far those who are ready for the next generation have come."""

    expected: int
    generation: int = 0
    alive: frozenset[int] = frozenset()
    lost: tuple[tuple[int, str], ...] = ()
    ready: dict[int, int] = field(default_factory=dict)
    """Worker id → agreements committed, for those who wait for the next generation."""
    finished: frozenset[int] = frozenset()
    formed: bool = False
    """Whether the current generation is whole: no member of it was lost since it was formed."""

    def join(self, worker: int) -> Roster:
        """A worker connected for the first time."""
        return replace(self, alive=self.alive | {worker})

    def lose(self, worker: int, reason: str) -> Roster:
        """A worker died, perhaps before it joined, or fell silent; those that had finished must regroup too."""
        if any(gone == worker for gone, _ in self.lost):
            return self
        return replace(
            self,
            alive=self.alive - {worker},
            lost=(*self.lost, (worker, reason)),
            ready={who: at for who, at in self.ready.items() if who != worker},
            finished=frozenset(),
            formed=False,
        )

    def tear(self) -> Roster:
        """A collective failed though all members are alive: the same members form a new generation."""
        return replace(self, finished=frozenset(), formed=False)

    def report(self, worker: int, committed: int) -> Roster:
        """A worker waits for the next generation, with `committed` agreements behind it."""
        if worker not in self.alive:
            return self
        return replace(self, ready={**self.ready, worker: committed})

    def finish(self, worker: int) -> Roster:
        """A worker has nothing left to agree on and waits for the others to say the same."""
        return replace(self, finished=self.finished | ({worker} & self.alive))

    def all_finished(self) -> bool:
        """Whether all may leave."""
        return self.formed and bool(self.alive) and self.finished >= self.alive

    def next_generation(self) -> tuple[Roster, Go] | None:
        """The next generation, if all that it needs are ready: at the start all, later all survivors."""
        complete = len(self.alive) + len(self.lost) >= self.expected
        if not self.alive or not complete or set(self.ready) != set(self.alive):
            return None
        go = decide(self.generation + 1, self.ready)
        return replace(self, generation=go.generation, ready={}, finished=frozenset(), formed=True), go


def decide(generation: int, committed: dict[int, int]) -> Go:
    """From how far each survivor has come: who goes on, from where, and who gives what to whom.

    Survivors differ by at most one agreement: number n + 1 needs a contribution of every member, also of those
    that still work on number n. A larger difference is a defect of ours and must not be papered over.
    """
    target, lowest = max(committed.values()), min(committed.values())
    assert target - lowest <= 1, f"survivors are more than one agreement apart: {committed}"
    ahead = [worker for worker, at in sorted(committed.items()) if at == target]
    giver = ahead[0] if lowest < target else None
    return Go(generation, tuple(sorted(committed)), target, giver)

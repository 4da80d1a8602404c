"""Whether a table can run: every action once, on the rank that holds its stage, and no deadlock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from cordee.core.errors import PlanError
from cordee.split.schedules.table import Action, Table


def check(table: Table) -> None:
    """Raise `PlanError` with the reason why `table` cannot run, if there is one."""
    _check_places(table)
    _check_counts(table)
    for _ in in_order(table):
        pass


def in_order(table: Table) -> Iterator[Action]:
    """All actions in an order in which the ranks can execute them, each its own row, with sends that do not block.

    `PlanError` when the ranks wait for each other. It takes time in proportion to the number of actions.
    """
    places = [0] * table.ranks
    done: set[Action] = set()
    sleeping: dict[Action, list[int]] = {}
    """Ranks by the action that each waits for."""
    ready = list(range(table.ranks))
    while ready:
        rank = ready.pop()
        row = table.rows[rank]
        while places[rank] < len(row):
            action = row[places[rank]]
            missing = next((one for one in table.needs(action) if one not in done), None)
            if missing is not None:
                sleeping.setdefault(missing, []).append(rank)
                break
            yield action
            places[rank] += 1
            done.add(action)
            ready += sleeping.pop(action, ())
    if sleeping:
        raise PlanError(
            _deadlock(table, {rank: missing for missing, ranks in sleeping.items() for rank in ranks}, places)
        )


def _deadlock(table: Table, waits: dict[int, Action], places: list[int]) -> str:
    """Which ranks wait for each other in a circle, at which action and for which."""
    path = [min(waits)]
    while (rank := table.rank_of(waits[path[-1]].stage)) not in path:
        path.append(rank)  # it waits too: what is missing comes later in its row
    heads = {rank: table.rows[rank][places[rank]] for rank in waits}
    links = []
    for one in path[path.index(rank) :]:
        missing = waits[one]
        other = table.rank_of(missing.stage)
        behind = "" if heads[other] == missing else f", which rank {other} executes after {heads[other]}"
        links.append(f"rank {one} waits at {heads[one]} for {missing}{behind}")
    return f"pipeline table: deadlock: {'; '.join(links)}. Change the order of these actions."


def _check_places(table: Table) -> None:
    for rank, row in enumerate(table.rows):
        if not row:
            raise PlanError(
                f"pipeline table: the row of rank {rank} is empty. Give every rank a stage, or use fewer ranks."
            )
        for action in row:
            if (right := table.rank_of(action.stage)) != rank:
                raise PlanError(
                    f"pipeline table: {action} stands in the row of rank {rank}, but of {table.ranks} ranks stage "
                    f"{action.stage} lies on rank {right}: stage s lies on rank s % ranks. Move it there."
                )


def _check_counts(table: Table) -> None:
    """Every stage computes every micro-batch once: F, and B or both I and W."""
    counts = Counter(action for row in table.rows for action in row)
    for action, count in counts.items():
        if count > 1:
            raise PlanError(f"pipeline table: {action} occurs {count} times. Keep one of them.")
    for stage, micro in product(range(table.stages), range(table.micros)):  # ends at the first that is missing
        kinds = "".join(kind for kind in "FBIW" if Action(kind, stage, micro) in counts)
        if kinds not in ("FB", "FIW"):
            raise PlanError(
                f"pipeline table: stage {stage} computes {', '.join(kinds) or 'nothing'} of micro-batch {micro}. "
                f"Each of {table.stages} stages needs F and B, or F, I and W, of each of {table.micros} micro-batches."
            )

"""What a user should know of data before a training, in words."""

from __future__ import annotations

from collections.abc import Sequence


def lacking_note(lacking: Sequence[str]) -> tuple[str, ...]:
    """Of a store whose chain had functions for batches, such as `transform(scaled)`."""
    if not lacking:
        return ()
    return (
        f"the data's store was built of a chain with {', '.join(lacking)}, which a store does not keep: batches are as "
        f"they were before. If that is not meant, give it again: cordee.data.store(...){_chained(lacking)}",
    )


def kept_note(out: str, lacking: Sequence[str]) -> str:
    """The same when the store was built."""
    return (
        f"{out} holds rows without {', '.join(lacking)}: a store keeps no functions for batches. Give them again when "
        f"you train: cordee.data.store({out!r}){_chained(lacking)}"
    )


def _chained(lacking: Sequence[str]) -> str:
    return "".join(f".{one}" for one in lacking)

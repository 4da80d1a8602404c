"""How one replica of a model lies over workers: whole, or in slices of its weight matrices; products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordee.split.product import Product as Product
    from cordee.split.product import matmul as matmul


def __getattr__(name: str) -> Any:
    """What users call; imported when it is asked for, because tables of schedules need no torch."""
    if name not in ("Product", "matmul"):
        raise AttributeError(f"module 'cordee.split' has no attribute {name!r}")
    from cordee.split import product

    return getattr(product, name)

"""How one replica of a model lies over workers: whole, or in slices of its weight matrices; products of matrices."""

from cordee.split.product import Product as Product
from cordee.split.product import matmul as matmul

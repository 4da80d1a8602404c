"""Slurm: what is asked of it, the script that it is given, and the places of an allocation."""

from cordee.runtime.engines.slurm.allocation import run
from cordee.runtime.engines.slurm.settings import Settings

__all__ = ["Settings", "run"]

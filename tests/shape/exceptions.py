"""Where the house departs from its own rules, and why. These lists only shrink: an entry not needed any more fails."""

from __future__ import annotations

# (importing module, imported module): reason
FOLDER_ORDER: dict[tuple[str, str], str] = {}

# path from the repository's root: lines it may have
LONG_MODULES: dict[str, int] = {}

# module:function: lines it may have
LONG_FUNCTIONS: dict[str, int] = {}

# module:function: parameters it may have
MANY_PARAMETERS: dict[str, int] = {}

# (module, what could unpickle): why the bytes cannot come from elsewhere
UNPICKLING: dict[tuple[str, str], str] = {}

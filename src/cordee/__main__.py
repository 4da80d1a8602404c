"""`python -m cordee`."""

import os
import sys

if sys.path[0] == os.getcwd():  # where `-m` would find a file called like a module of ours or of Python
    del sys.path[0]

from cordee.cli.entry import main

main()

"""`python -m cordee`."""

from cordee.cli.main import main

main()

"""Run the command line with ``python -m asyncmanifold``."""

import sys

from asyncmanifold.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m asyncmanifold`` is the command line."""

import sys

from asyncmanifold.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m tokalign`, for which Python puts the current folder first on the path of modules."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from tokalign.cli import program

program()

"""``python -m proxemic``."""

import os
import sys

# Python has put the current directory first, and processes that multiprocessing starts get the path of this one.
if not sys.flags.safe_path and (not sys.path[0] or sys.path[0] == os.getcwd()):  # noqa: PTH109
    del sys.path[0]

from proxemic.cli import main

sys.exit(main())

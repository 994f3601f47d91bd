"""``python -m proxemic``."""

import os
import sys

# Python puts the current directory first, and processes started by multiprocessing inherit the module path.
if not sys.flags.safe_path and (not sys.path[0] or sys.path[0] == os.getcwd()):  # noqa: PTH109
    del sys.path[0]

from proxemic.cli import main

sys.exit(main())

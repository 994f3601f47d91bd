"""``python -m proxemic``."""

import sys

from proxemic.cli import main

sys.exit(main())

"""``python -m proxemic.cli``."""

import sys

from proxemic.cli import main

sys.exit(main())

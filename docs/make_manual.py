"""Write the man page from the flags of all commands: ``python docs/make_manual.py FILE``."""

import re
import sys
from importlib.metadata import version
from pathlib import Path

from argparse_manpage.manpage import Manpage

from proxemic.cli import build_parser

REQUESTS = "B|I|PP|SH|SS|TH|TP|br|fi|ie|nf|\\."


def manual() -> str:
    """The page; its date is that of SOURCE_DATE_EPOCH, where that is set."""
    described = {
        "project_name": "proxemic",
        "version": version("proxemic"),
        "description": "proxy-based deep metric learning",
        "manual_title": "Proxemic",
    }
    page = str(Manpage(build_parser(whole=True), described))
    # Escape text such as .txt at the start of a line, which would be read as a request; put headings on one line.
    page = re.sub(rf"^(?=\.(?!({REQUESTS})\b)|')", r"\\&", page, flags=re.MULTILINE)
    return re.sub(r"^\.SH\n", ".SH ", page, flags=re.MULTILINE)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(manual(), encoding="utf-8")

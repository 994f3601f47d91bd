"""Puts the man page into distributions: that of `make dist`, or of the source distribution that is being built."""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualHook(BuildHookInterface):
    """A build from a checkout without the page does without it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the page among the files of what is built."""
        page = Path(os.environ.get("PROXEMIC_MANUAL", Path(self.root, "proxemic.1")))
        if version != "editable" and page.is_file():
            if self.target_name == "sdist":
                build_data["force_include"][str(page)] = "proxemic.1"
            else:
                build_data["shared_data"][str(page)] = "share/man/man1/proxemic.1"

"""Where the time of a run went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Times:
    """Seconds of wall clock, by what they were spent on, since ``began`` (`time.monotonic`; None is now)."""

    def __init__(self, began: float | None = None) -> None:
        now = time.monotonic()
        self._began = now if began is None else began
        self._spent = {"start": now - self._began}

    def add(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def seconds(self) -> dict[str, float]:
        """The seconds by name, with ``other`` and the ``total``."""
        total = time.monotonic() - self._began
        spent = self._spent | {"other": max(0.0, total - sum(self._spent.values())), "total": total}
        return {name: round(value, 3) for name, value in spent.items()}

    def sentence(self) -> str:
        """The seconds in one line, without what took less than half a second."""
        seconds = self.seconds()
        total = seconds.pop("total")
        parts = [f"{name} {value:.0f}" for name, value in seconds.items() if value >= 0.5]
        return f"Seconds: {', '.join([*parts, f'in all {total:.0f}'])}"

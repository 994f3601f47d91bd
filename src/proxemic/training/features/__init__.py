"""Features of a frozen backbone, computed once and read from a cache ever after.

`config` is the section of a recipe; `cache` gives image sets whose pixels are such features, out of the `files` that it
finds by their `fingerprint`, or writes.
"""

__all__: list[str] = []

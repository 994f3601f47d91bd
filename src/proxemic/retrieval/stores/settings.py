"""Settings of indexes, checked before anything is made."""

from collections.abc import Mapping

from proxemic.retrieval.stores.store import IndexKind


def check_settings(
    address: str,
    kind: IndexKind,
    settings: Mapping[str, int],
    allowed: Mapping[str, Mapping[str, tuple[int, int, int]]],
) -> dict[str, int]:
    """Check the settings of an index, and fill in defaults.

    Args:
        address: What is to have the index, for messages.
        kind: Its kind.
        settings: What is given.
        allowed: For each kind the default, lowest and highest value of each setting.

    Raises:
        ValueError: If the kind or a setting is not known, or a value is out of its range.

    >>> check_settings("shop", "hnsw", {"m": 8}, {"hnsw": {"m": (16, 2, 100), "ef_search": (40, 1, 1000)}})
    {'m': 8, 'ef_search': 40}
    """
    if kind not in allowed:
        raise ValueError(f"an index is {kind!r}, but {address} has one of {', '.join(allowed)}.")
    known = allowed[kind]
    for name, value in settings.items():
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes no settings"
            raise ValueError(f"{name} is no setting of {kind}, which {takes}.")
        _, low, high = known[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}, but must be a whole number from {low:,} to {high:,}.")
    return {name: settings.get(name, default) for name, (default, _, _) in known.items()}

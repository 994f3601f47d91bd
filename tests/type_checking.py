"""The checker of types in tests: beartype, which takes an int where a float is meant, as PEP 484 does."""

from beartype import BeartypeConf, beartype

__all__ = ["check"]

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

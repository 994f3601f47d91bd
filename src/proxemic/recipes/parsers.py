"""The parsers of a recipe's parts: one for each, as a parser looks through all of its keys for each that it reads."""

import functools
from collections.abc import Callable
from typing import Any

from proxemic.extras import optional_dependency
from proxemic.recipes.places import field_types, is_section
from proxemic.recipes.yaml_files import parse_yaml, write_yaml

with optional_dependency("train"):
    from jsonargparse import ArgumentParser, Namespace, set_dumper

_FORMAT = "proxemic"  # that of jsonargparse itself is written by PyYAML in Python, ten times slower
set_dumper(_FORMAT, write_yaml)

LINKS = {"images.channels": "model.in_channels", "images.size": "model.image_size"}
"""Keys that the values of others follow from: the network takes what the transforms make."""


class Parsers:
    """Those of a dataclass, such as `Recipe`: what it refuses is an ``ArgumentError`` or a `TypeError`."""

    def __init__(self, made: type) -> None:
        types = field_types(made)
        self._names = [name for name in types if name != "second_phase"]  # whose keys are those of the recipe itself
        sections = [name for name in self._names if is_section(types[name])]
        inside = {key.partition(".")[0] for link in LINKS.items() for key in link}
        linked = [name for name in sections if name in inside]
        self._parts: list[tuple[ArgumentParser, list[str]]] = []
        for part in filter(None, (linked, *([name] for name in sections if name not in linked))):
            parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
            for name in part:
                parser.add_class_arguments(types[name], name)
            for source, target in LINKS.items() if part is linked else ():
                parser.link_arguments(source, target)
            self._parts.append((parser, part))
        parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
        parser.add_class_arguments(made, skip={"second_phase", *sections})
        self._parts.append((parser, [name for name in self._names if name not in sections]))

    def parse(self, content: dict[str, Any]) -> Namespace:
        """The typed values, defaults included; ``content`` may be changed."""
        parsed = Namespace()
        for parser, part in self._parts:
            parsed.update(parser.parse_object({name: content[name] for name in part if name in content}, env=False))
        return parsed

    def dump(self, config: Namespace) -> dict[str, Any]:
        """What is parsed to the same values, defaults included."""
        dumped = (
            parser.dump(_only(config, part), format=_FORMAT, skip_unset=False, skip_validation=True)
            for parser, part in self._parts
        )
        found = parse_yaml("".join(dumped))
        return {name: found[name] for name in self._names}

    def instantiate(self, config: Namespace, make: Callable[..., Any]) -> dict[str, Any]:
        """The objects, each made by ``make`` of its class and its arguments."""
        found: dict[str, Any] = {}
        for parser, part in self._parts:
            found |= parser.instantiate(_only(config, part), instantiators=[(make, object, True)]).as_dict()
        return found


def _only(config: Namespace, names: list[str]) -> Namespace:
    return Namespace({name: config[name] for name in names})


parsers_of = functools.cache(Parsers)

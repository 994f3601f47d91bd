"""What is compared: recipes, each read once, with the data set and the loss that it stands for in the tables."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from proxemic.errors import UserError
from proxemic.protocols.recipe_content import class_name, data_key
from proxemic.recipes import find_recipe, list_recipes

_SAME_TEST = ("validation_fraction", "cache_dir")
"""Values of a data source that leave the test images what they are."""


@dataclass(frozen=True)
class Entry:
    """One recipe of a comparison.

    Args:
        name: Of a recipe of the package, or the full path of a YAML file.
        slug: Its folder's name.
        dataset: The table that it stands in. Recipes of the package stand together by their folder, or by their own
            name where they have none, files by their class of data; those whose test images differ for all that are
            set apart by a number, as ``own-images (2)``.
        loss: What is told of its loss: the class, what is added to it, the number of proxies where there are several.
        yaml: All of its values, with seed 0.
    """

    name: str
    slug: str
    dataset: str
    loss: str
    yaml: str

    @property
    def title(self) -> str:
        """What it is called in tables; of a file that is the slug."""
        return f"{self.slug}.yaml" if _is_file(self.name) else self.name

    @property
    def label(self) -> str:
        """What it is called in plots, beside others of its data set."""
        return self.title.partition("/")[2] or self.title

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Its values."""
        return yaml.safe_load(self.yaml)

    @property
    def selected_on(self) -> str:
        """What chooses the epoch: ``validation``, ``test``, or ``last``, nothing."""
        return self.recipe["evaluation"]["select_on"]

    def with_seed(self, seed: int) -> str:
        """All of its values, with another seed."""
        return self.yaml.replace("\nseed: 0\n", f"\nseed: {seed}\n")

    def is_named(self, word: str) -> bool:
        """Whether the user means it, by name, path or pattern."""
        return _matches(self.name, word) or self.name == str(Path(word).resolve()) or self.title == word


def find_names(words: Sequence[str]) -> list[str]:
    """The recipes that the user names, each once: a name, a YAML file, or a pattern over the package's names.

    Raises:
        UserError: If there is no such recipe, or no word.

    >>> find_names(["glyphs-small/multi-*", "glyphs"])
    ['glyphs-small/multi-similarity', 'glyphs']
    """
    if not words:
        raise UserError(
            "A comparison needs recipes: name some that proxemic recipes list prints, patterns such as "
            "'glyphs-small/*', or YAML files."
        )
    return list(dict.fromkeys(name for word in words for name in _names(word)))


def _matches(name: str, pattern: str) -> bool:
    """As in a shell: ``*`` stops at a slash, ``**`` does not.

    >>> [_matches("cub/reality-check/hist", pattern) for pattern in ("cub/*", "cub/**", "cub/*/h?st")]
    [False, True, True]
    """
    signs = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return (
        re.fullmatch("".join(signs.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*|\?)", pattern)), name)
        is not None
    )


def _names(word: str) -> Iterator[str]:
    names = list_recipes()
    if re.search(r"[*?]", word) and not Path(word).is_file():
        matching = [name for name in names if _matches(name, word)]
        if not matching:
            raise UserError(f"No recipe is called {word!r}: see the names with proxemic recipes list.")
        yield from matching
    else:
        path = find_recipe(word)
        yield word if word in names else str(path.resolve())


def read_entry(name: str, flags: Sequence[str], before: Sequence[Entry] = (), *, own_code: bool = False) -> Entry:
    """Read a recipe.

    Args:
        name: As `find_names` gives it.
        flags: What overrides it.
        before: The entries before it: slugs are unique.
        own_code: It is to be trained: all that it names, also in the current directory, is made once, to try it.

    Raises:
        UserError: If the recipe or a flag is refused; the recipe is named.
    """
    from proxemic.recipes.reader import read_recipe

    try:
        read = read_recipe(find_recipe(name), [*flags, "--seed", "0"], own_code=own_code)
        if own_code:
            _ = read.recipe  # what a class refuses is said before the first training
        text = read.yaml
    except (UserError, ValueError) as error:
        where = "" if str(error).startswith(str(find_recipe(name))) else f"{name}: "
        raise UserError(f"{where}{error}") from error
    recipe = yaml.safe_load(text)
    slug, dataset = (
        (Path(name).stem, data_key(recipe)) if _is_file(name) else (name.replace("/", "-"), name.partition("/")[0])
    )
    slug = _number(slug, "{}-{}", lambda each: each not in [entry.slug for entry in before])
    other_images = {entry.dataset for entry in before if _test_images(entry.recipe) != _test_images(recipe)}
    dataset = _number(dataset, "{} ({})", lambda each: each not in other_images)
    return Entry(name, slug, dataset, _loss_label(recipe["loss"]), text)


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def _number(name: str, form: str, fits: Callable[[str], bool]) -> str:
    return next(filter(fits, (name if number == 1 else form.format(name, number) for number in count(1))))


def _test_images(recipe: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    data = recipe["data"]
    given = data.get("init_args", {})
    return data["class_path"], {key: value for key, value in given.items() if key not in _SAME_TEST}


def _loss_label(loss: Mapping[str, Any]) -> str:
    given = loss.get("init_args", {})
    name = class_name(given["loss"]) if class_name(loss) == "PairwiseLoss" else class_name(loss)
    added = "".join(f" + {class_name(each)}" for each in given.get("regularizers") or ())
    proxies = given.get("proxies_per_class", 1)
    return f"{name}{added}{f', K = {proxies}' if proxies > 1 else ''}"

"""The recipes of a comparison, with the names of their data set and loss in the tables."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from proxemic.errors import UserError
from proxemic.recipes import find_recipe, is_match, list_recipes
from proxemic.studies.recipe_content import class_name, data_key

_SAME_TEST = ("validation_fraction", "cache_dir")
"""Arguments of a data source that do not change the test images."""


@dataclass(frozen=True)
class Entry:
    """One recipe of a comparison.

    Args:
        name: Name of a recipe of the package, or absolute path of a YAML file.
        slug: Name of its folder.
        dataset: Title of its table: the folder (or the name) of a recipe of the package, the data class of a YAML file.
            If the test images of such recipes differ, a number is appended: ``own-images (2)``.
        loss: Class of the loss, its regularizers, and the number of proxies per class if above 1.
        yaml: The full recipe, with seed 0.
    """

    name: str
    slug: str
    dataset: str
    loss: str
    yaml: str

    @property
    def title(self) -> str:
        """The name in tables; for a YAML file, the name of the file."""
        return f"{self.slug}.yaml" if _is_file(self.name) else self.name

    @property
    def label(self) -> str:
        """The name in plots, without the data set."""
        return self.title.partition("/")[2] or self.title

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The full recipe as plain values."""
        return yaml.safe_load(self.yaml)

    @property
    def selected_on(self) -> str:
        """The split on which the epoch is selected: ``validation`` or ``test``; ``last`` means the last epoch."""
        return self.recipe["evaluation"]["select_on"]

    def with_seed(self, seed: int) -> str:
        """Return the full recipe with another seed."""
        return self.yaml.replace("\nseed: 0\n", f"\nseed: {seed}\n")

    def is_named(self, word: str) -> bool:
        """Return whether ``word`` is the name, a pattern of the name, or the path of the recipe."""
        return is_match(self.name, word) or self.name == str(Path(word).resolve()) or self.title == word


def find_names(words: Sequence[str]) -> list[str]:
    """Resolve names, YAML files and patterns of the package's names to the names of recipes, each once.

    Raises:
        UserError: If there is no word, or no recipe matches a word.

    >>> find_names(["glyphs-small/multi-*", "glyphs"])
    ['glyphs-small/multi-similarity', 'glyphs']
    """
    if not words:
        raise UserError(
            "A comparison needs recipes: name some that proxemic recipes list prints, patterns such as "
            "'glyphs-small/*', or YAML files."
        )
    known, found = list_recipes(), dict[str, None]()
    for word in words:
        if re.search(r"[*?]", word) and not Path(word).is_file():
            matching = [name for name in known if is_match(name, word)]
            if not matching:
                raise UserError(f"No recipe is called {word!r}: see the names with proxemic recipes list.")
        else:
            path = find_recipe(word)
            matching = [word if word in known else str(path.resolve())]
        found |= dict.fromkeys(matching)
    return list(found)


def read_entry(name: str, flags: Sequence[str], before: Sequence[Entry] = (), *, own_code: bool = False) -> Entry:
    """Read a recipe by a name that `find_names` returns, with a slug that no entry of ``before`` has.

    With ``own_code``, the objects that the recipe names are also created once, to report errors before training.
    """
    from proxemic.recipes.reader import read_recipe  # imports torch

    try:
        read = read_recipe(find_recipe(name), [*flags, "--seed", "0"], own_code=own_code)
        if own_code:
            _ = read.recipe
    except (UserError, ValueError) as error:
        where = "" if str(error).startswith(str(find_recipe(name))) else f"{name}: "
        raise UserError(f"{where}{error}") from error
    recipe, is_file = yaml.safe_load(read.yaml), _is_file(name)
    stem, dataset = (Path(name).stem, data_key(recipe)) if is_file else (name.replace("/", "-"), name.partition("/")[0])
    slugs = [entry.slug for entry in before]
    slug = next(free for n in count(1) if (free := f"{stem}-{n}" if n > 1 else stem) not in slugs)
    others = {entry.dataset for entry in before if _test_images(entry.recipe) != _test_images(recipe)}
    table = next(free for n in count(1) if (free := f"{dataset} ({n})" if n > 1 else dataset) not in others)
    return Entry(name, slug, table, _loss_label(recipe["loss"]), read.yaml)


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def has_key(recipe: Mapping[str, Any], key: str) -> bool:
    """Return whether a full recipe has a dotted key, in the first phase for a key of the second.

    >>> has_key({"loss": {"class_path": "Loss", "init_args": {"alpha": None}}}, "second_phase.loss.alpha")
    True
    >>> has_key({"loss": {"class_path": "Loss", "init_args": {"regularizers": []}}}, "loss.regularizers.weight")
    False
    """
    value: Any = recipe
    for name in key.removeprefix("second_phase.").split("."):
        value = value[-1] if isinstance(value, list) and value else value
        value = value.get("init_args", value) if isinstance(value, Mapping) else {}
        if name not in value:
            return False
        value = value[name]
    return True


def _test_images(recipe: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    data = recipe["data"]
    given = data.get("init_args", {})
    return data["class_path"], {key: value for key, value in given.items() if key not in _SAME_TEST}


def _loss_label(loss: Mapping[str, Any]) -> str:
    given = loss.get("init_args", {})
    name = class_name(given["loss"]) if class_name(loss) == "PairwiseLoss" else class_name(loss)
    added = "".join(f" + {class_name(regularizer)}" for regularizer in given.get("regularizers") or ())
    proxies = given.get("proxies_per_class", 1)
    return f"{name}{added}{f', K = {proxies}' if proxies > 1 else ''}"

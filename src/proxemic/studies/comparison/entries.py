"""What is compared: recipes, each read once, with the data set and the loss that it stands for in the tables."""

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
"""Values of a data source that do not change the test images."""


@dataclass(frozen=True)
class Entry:
    """One recipe of a comparison.

    Args:
        name: The name of a recipe of the package, or the full path of a YAML file.
        slug: The name of its folder.
        dataset: The table that it is in: the folder of a recipe of the package (or its name, where it has none), the
            class of data of a file. Recipes whose test images differ all the same get a number: ``own-images (2)``.
        loss: The class of the loss, its regularizers, and the number of proxies per class where there are several.
        yaml: All values, with seed 0.
    """

    name: str
    slug: str
    dataset: str
    loss: str
    yaml: str

    @property
    def title(self) -> str:
        """The name in tables; for a file, its slug."""
        return f"{self.slug}.yaml" if _is_file(self.name) else self.name

    @property
    def label(self) -> str:
        """The name in plots, beside others of its data set."""
        return self.title.partition("/")[2] or self.title

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """All values, parsed."""
        return yaml.safe_load(self.yaml)

    @property
    def selected_on(self) -> str:
        """The split that chooses the epoch: ``validation`` or ``test``; ``last`` takes the last epoch."""
        return self.recipe["evaluation"]["select_on"]

    def with_seed(self, seed: int) -> str:
        """Return all values as YAML, with another seed."""
        return self.yaml.replace("\nseed: 0\n", f"\nseed: {seed}\n")

    def is_named(self, word: str) -> bool:
        """Return whether ``word`` is its name, path or a pattern of its name."""
        return is_match(self.name, word) or self.name == str(Path(word).resolve()) or self.title == word


def find_names(words: Sequence[str]) -> list[str]:
    """Find the recipes that words stand for, each once: names, YAML files, or patterns of the package's names.

    Raises:
        UserError: If there is no word, or one stands for no recipe.

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
    """Read a recipe by a name that `find_names` returns; its slug differs from those of the entries ``before`` it.

    With ``own_code``, for training, the objects that it names are made once to try them.
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

"""Test whether a component helps, by paired configurations: each is trained with and without it, otherwise the same.

    python docs/experiments/paired.py cars-features several-proxies --root runs/cars/features.parquet
    python docs/experiments/paired.py glyphs-small warp --table docs/experiments
    python docs/experiments/paired.py --draw

rule.md says how configurations are drawn, how many there are, and what decides. The drawn ones are in
kept/DATASET/configurations, which --draw writes; finished runs are kept in kept/DATASET/evidence, and the same command
continues.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _evidence
import _experiments as shared
import numpy as np
import yaml
from scipy.optimize import brentq
from scipy.stats import nct, t

from proxemic.errors import UserError
from proxemic.files import write_csv
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.yaml_files import read_yaml
from proxemic.studies.statistics import format_estimate, t_interval, t_test
from proxemic.studies.tuning.spaces import default_space, load_space, recipe_value, resolve_factors
from proxemic.tables import Table

PRIMARY = "recall@1"
"""The papers' metric, which alone decides."""
EFFECT, POWER, LEVEL = 0.7, 0.8, 0.05
"""The gain in points that the number of configurations is to find, with this chance, at this level."""
FIRST = 20
"""The pairs whose standard deviation sets the number of configurations."""
FEWEST, MOST = 60, {"cars-features": 240, "glyphs-small": 120}
SECOND = "second_phase."


@dataclass(frozen=True)
class Component:
    """A component of a loss, and how a configuration is trained with and without it."""

    loss: str
    """The loss whose kept searches give the centres of the configurations."""
    with_it: str
    without: str
    """The names of the two conditions."""
    varied: tuple[str, ...] = ()
    """Keys that are not drawn."""

    def values(self, condition: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Return the overrides of a condition at the values of a configuration."""
        values = dict(configuration)
        if self.loss == "mpa":
            values["loss.proxies_per_class"] = int(condition.removeprefix("K="))
        elif condition == "no regularizer":
            del values["loss.regularizers.weight"]
            values["loss.regularizers"] = []
        elif condition == "no warp":
            for phase in ("", SECOND):
                temperature = values[f"{phase}loss.temperature"]
                values = {name: value for name, value in values.items() if not name.startswith(f"{phase}loss.")}
                values[f"{phase}loss"] = {
                    "class_path": "proxemic.losses.EuclideanSoftmaxLoss",
                    "init_args": {"temperature": temperature},
                }
        return values


COMPONENTS = {
    "several-proxies": Component("mpa", "K=10", "K=1", ("loss.proxies_per_class",)),
    "mean-proxy": Component("softmax-mean-proxy", "regularizer", "no regularizer"),
    "warp": Component("warp", "warp", "no warp"),
}


def searches_of(known: shared.Kept, loss: str) -> list[Path]:
    """Return the recipes of all kept searches of a loss, which take turns as centres of the configurations."""
    return [path for suffix in ("", *shared.AGAIN) if (path := known.recipe(loss + suffix)).exists()]


def draw(known: shared.Kept, component: Component, number: int) -> dict[str, Any]:
    """Draw a configuration: each key uniformly, in its scale, within a quarter of its range around the best value.

    Values of the second phase are drawn as factors of the first phase's drawn value where the space has factors.
    Configuration n depends on n alone.
    """
    found = searches_of(known, component.loss)
    best, generator = read_yaml(found[number % len(found)]), np.random.default_rng([2026, number])
    drawn: dict[str, Any] = {}
    for prefix, phase, stage in zip(
        ("", SECOND), (best, best["second_phase"]), space_of(known, component), strict=False
    ):
        for name, item in stage["search"].items():
            if name in component.varied:
                continue
            centre, scale = recipe_value(phase, name), 1.0
            low, high = (item["low"], item["high"]) if "low" in item else item["factor"]
            if "factor" in item:  # of the first phase's value
                centre, scale = centre / recipe_value(best, name), drawn[name]
            drawn[prefix + name] = float(f"{scale * _near(centre, low, high, item.get('log', False), generator):.6g}")
    if "loss.delta_scale" in drawn:  # which both phases share
        drawn[f"{SECOND}loss.delta_scale"] = drawn["loss.delta_scale"]
    return drawn


def space_of(known: shared.Kept, component: Component) -> list[Any]:
    """Return the space of the kept searches of a loss, with rates around those that these had."""
    search = shared.SEARCHES[component.loss]
    recipe = _content(f"{known.folder.name}/{search.recipe}")
    around = recipe if known.folder.name == shared.FEATURES else _content(shared.AROUND)
    space = default_space(recipe) if search.space is None else load_space(search.space)
    return resolve_factors(space, around, f"The space of {component.loss}")


def _content(recipe: str) -> Any:
    return yaml.safe_load(read_recipe(find_recipe(recipe)).yaml)


def _near(best: float, low: float, high: float, log: bool, generator: np.random.Generator) -> float:
    low, high, best = (math.log(value) if log else value for value in (low, high, min(max(best, low), high)))
    quarter = (high - low) / 4
    value = float(generator.uniform(max(low, best - quarter), min(high, best + quarter)))
    return math.exp(value) if log else value


def power(effect: float, deviation: float, n: int, level: float = LEVEL) -> float:
    """Compute the power of the two-sided t-test of n differences: the chance that it finds a mean of ``effect``.

    >>> round(power(0.7, 2.0, 66), 2)
    0.8
    """
    critical = t.isf(level / 2, n - 1)
    return float(nct.sf(critical, n - 1, effect * math.sqrt(n) / deviation))


def found_effect(deviation: float, n: int, level: float = LEVEL) -> float:
    """Return the smallest mean that n differences of this standard deviation would find with 80% power.

    >>> round(found_effect(1.0, 3, 0.05 / 136), 0), round(found_effect(1.0, 10, 0.05 / 136), 1)
    (38.0, 2.1)
    """
    root: Any = brentq(lambda effect: power(effect, deviation, n, level) - POWER, 0, 1000 * deviation)
    return float(root)


def needed(deviation: float, effect: float = EFFECT) -> int:
    """Return the smallest number of differences that finds an effect with 80% power.

    >>> needed(2.0), needed(0.42)
    (67, 6)
    """
    n = 3
    while power(effect, deviation, n) < POWER:
        n += 1
    return n


def differences(evidence: _evidence.Evidence, dataset: str, name: str, metric: str = PRIMARY) -> dict[int, float]:
    """Return the differences of a component by configuration, in points."""
    component = COMPONENTS[name]
    one, other = (
        evidence.metric(dataset, name, condition, metric) for condition in (component.with_it, component.without)
    )
    return {number: 100 * (one[number] - other[number]) for number in sorted(one.keys() & other.keys())}


def number_of(evidence: _evidence.Evidence, dataset: str, name: str) -> int:
    """Return the number of configurations: 20, and once these are trained, what their standard deviation asks for."""
    first = [value for number, value in differences(evidence, dataset, name).items() if number < FIRST]
    if len(first) < FIRST:
        return FIRST
    return min(max(needed(statistics.stdev(first)), FEWEST), MOST[dataset])


def pairs(known: shared.Kept, evidence: _evidence.Evidence, name: str, root: Path | None) -> Iterator[_evidence.Runs]:
    """Iterate over the runs of a component: both conditions of each configuration in turn."""
    component, dataset, number = COMPONENTS[name], known.folder.name, 0
    configurations = read_configurations(known, name)
    found = searches_of(known, component.loss)
    while number < number_of(evidence, dataset, name):
        for condition in (component.with_it, component.without):
            values = component.values(condition, configurations[number])
            recipe = found[number % len(found)]
            yield _evidence.Runs(dataset, name, condition, recipe, [number], values, root=root)
        number += 1


def read_configurations(known: shared.Kept, name: str) -> list[dict[str, float]]:
    """Read the drawn configurations of a component."""
    rows = shared.read_rows(_drawn(known, name))
    return [{key: float(value) for key, value in row.items() if key != "configuration"} for row in rows]


def _drawn(known: shared.Kept, name: str) -> Path:
    return known.folder / "configurations" / f"{name}.csv"


def write_configurations(kept: Path) -> None:
    """Draw as many configurations as any number may ask for."""
    for dataset, most in MOST.items():
        known = shared.Kept(kept / dataset)
        for name, component in COMPONENTS.items():
            drawn = [draw(known, component, number) for number in range(most)]
            rows = [[number, *values.values()] for number, values in enumerate(drawn)]
            write_csv(_drawn(known, name), ["configuration", *drawn[0]], rows)


def table(evidence: _evidence.Evidence, dataset: str, names: Sequence[str]) -> Table:
    """Tabulate the mean difference of each component with its interval, and the effect that its pairs would find."""
    rows = []
    for name in names:
        component = COMPONENTS[name]
        for metric, title in shared.METRICS.items():
            found = [*differences(evidence, dataset, name, metric).values()]
            if len(found) > 1:
                deviation = statistics.stdev(found)
                rows.append(
                    [
                        f"{component.loss}: {component.with_it} − {component.without}",
                        title,
                        f"{len(found)} of {number_of(evidence, dataset, name)}",
                        format_estimate(t_interval(found), factor=1),
                        f"{deviation:.2f}",
                        f"{t_test(found):.3f}",
                        f"{found_effect(deviation, len(found)):.2f}",
                    ]
                )
    columns = [
        "component",
        "metric",
        "configurations",
        "difference",
        "standard deviation",
        "p",
        "effect found with 80%",
    ]
    return Table(columns, rows)


def main() -> None:
    """Draw, train, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=MOST)
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=f"some of {', '.join(COMPONENTS)} (all)")
    parser.add_argument("--root", type=Path, metavar="FILE", help="the features of cars.py")
    parser.add_argument("--out", type=Path, default=Path("runs/paired"), metavar="DIR", help="for unfinished runs")
    parser.add_argument(
        "--kept", type=Path, default=shared.HERE / "kept", metavar="DIR", help="where finished ones are"
    )
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing; write the table of what is kept")
    parser.add_argument("--draw", action="store_true", help="train nothing; draw the configurations anew")
    arguments = parser.parse_args()
    if arguments.draw:
        write_configurations(arguments.kept)
        return
    if arguments.dataset is None:
        parser.error(f"name a data set: {', '.join(MOST)}")
    names = shared.check_losses(arguments.components, [*COMPONENTS])
    known, evidence = shared.Kept(arguments.kept / arguments.dataset), _evidence.Evidence(arguments.kept)
    if arguments.table is not None:
        made = table(evidence, arguments.dataset, names)
        shared.check_kept(made.rows, "pair of these components", known)
        shared.keep_table(made, arguments.table / f"paired-{arguments.dataset}.csv", f"paired.py {arguments.dataset}")
        return
    made_by = _evidence.commit()
    make = partial(_evidence.make, evidence, out=arguments.out, made_by=made_by)
    try:
        for name in names:
            for runs in pairs(known, evidence, name, arguments.root):
                make(runs)
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

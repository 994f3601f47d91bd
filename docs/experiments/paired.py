"""Test whether a component helps, by paired configurations: each is trained with and without it, otherwise the same.

    python docs/experiments/paired.py glyphs-small --table
    python docs/experiments/paired.py cars-features several-proxies --root runs/cars/features.parquet

--table writes the table of the runs of rule.md, which evidence.py makes at the configurations that the commit of the
runs drew. Without it, ``proxemic compare --paired`` draws configurations of
its own near the best values that a search found, and trains them; the same command continues.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _evidence
import _experiments as shared
import _kept

import proxemic
from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.yaml_files import read_yaml
from proxemic.studies.comparison import Comparison, markdown
from proxemic.studies.statistics import format_estimate, found_effect, needed, t_interval, t_test
from proxemic.studies.tuning.spaces import recipe_value
from proxemic.tables import Table

PRIMARY = "recall@1"
"""The papers' metric, which alone decides."""
EFFECT = 0.7
"""The gain in points that the number of configurations is to find with 80% power."""
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
    "several-proxies": Component("mpa", "K=10", "K=1"),
    "mean-proxy": Component("softmax-mean-proxy", "regularizer", "no regularizer"),
    "warp": Component("warp", "warp", "no warp"),
}


def searches_of(known: shared.Kept, loss: str) -> list[Path]:
    """Return the recipes of all kept searches of a loss, which take turns as centres of the configurations."""
    return [known.recipe(loss + suffix) for suffix in ("", *shared.AGAIN) if known.is_searched(loss + suffix)]


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
    return min(max(needed(statistics.stdev(first), EFFECT), FEWEST), MOST[dataset])


def pairs(known: shared.Kept, evidence: _evidence.Evidence, name: str, root: Path | None) -> Iterator[_evidence.Runs]:
    """Iterate over the runs of a component: both conditions of each configuration in turn."""
    component, dataset, number = COMPONENTS[name], known.dataset, 0
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
    return [json.loads(row["values"]) for row in _kept.read(known.kept, "configurations", known.dataset, name)]


def tables(_: argparse.Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate the components whose pairs are kept."""
    made = table(_evidence.Evidence(known.kept), known.dataset, [*COMPONENTS])
    shared.check_kept(made.rows, "pair of configurations", known)
    return {f"paired-{known.dataset}": made}


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


def compare(
    known: shared.Kept, name: str, count: int, out: Path, root: Path | None, *, dry_run: bool = False
) -> Comparison:
    """Compare a component at configurations drawn near the best values of the loss's kept search."""
    component, (recipe, *_) = COMPONENTS[name], searches_of(known, COMPONENTS[name].loss)
    best = read_yaml(recipe)
    own = {key: recipe_value(best, key) for key in read_configurations(known, name)[0]}
    files = []
    for condition in (component.without, component.with_it):
        files.append(out / f"{name}, {condition}.yaml")
        write_text(files[-1], read_recipe(recipe, component.values(condition, own)).yaml)
    without, with_it = files
    return proxemic.compare(
        [with_it],
        vary=[str(without)],
        paired=count,
        around=with_it,
        baseline=str(without),
        out=out / name,
        overrides=shared.LEAN | shared.place_of(root),
        dry_run=dry_run,
        report=lambda line: print(line, flush=True),
    )


def main() -> None:
    """Train, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=MOST)
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=f"some of {', '.join(COMPONENTS)} (all)")
    parser.add_argument("--root", type=Path, metavar="FILE", help="the features of cars.py")
    parser.add_argument("--pairs", type=int, default=FIRST, metavar="N", help=f"the number of configurations ({FIRST})")
    parser.add_argument("--out", type=Path, default=Path("runs/paired"), metavar="DIR", help="for the runs")
    shared.add_kept(parser)
    parser.add_argument("--table", action="store_true", help="train nothing; write the table of what is kept")
    arguments = parser.parse_args()
    names = shared.check_losses(arguments.components, [*COMPONENTS])
    known = shared.Kept(arguments.kept, arguments.dataset)
    try:
        if arguments.table:
            for name, made in tables(arguments, known).items():
                shared.write_table(made, name, f"paired.py {arguments.dataset}", known.kept)
            return
        for name in names:
            print(markdown(compare(known, name, arguments.pairs, arguments.out / arguments.dataset, arguments.root)))
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

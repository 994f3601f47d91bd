"""Compare recipes over seeds: training runs, statistics, tables, plots, and the papers' figures next to ours.

A comparison is a directory with a run for every recipe and seed. Finished runs are kept, so that more recipes and seeds
can be added. `sweep` compares recipes that differ in one or two values.
"""

from proxemic.studies.comparison.against_paper import against_paper
from proxemic.studies.comparison.directory import Cell, Comparison, Result
from proxemic.studies.comparison.entries import Entry, find_names
from proxemic.studies.comparison.run import compare
from proxemic.studies.comparison.tables import markdown

__all__ = ["Cell", "Comparison", "Entry", "Result", "against_paper", "compare", "find_names", "markdown"]

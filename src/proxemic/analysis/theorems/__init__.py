"""The propositions, lemmas and theorems of the papers, each as a bound beside an observed number; plots of two."""

from proxemic.analysis.theorems.observed import Statement, check_theorems, pair_bounds
from proxemic.analysis.theorems.plots import plot_lemma, plot_proposition

__all__ = ["Statement", "check_theorems", "pair_bounds", "plot_lemma", "plot_proposition"]

"""The propositions, lemmas and theorems of the papers, each as a bound beside an observed number."""

"""Recipes compared over seeds, and sweeps of one or two values: runs, statistics, tables, plots."""

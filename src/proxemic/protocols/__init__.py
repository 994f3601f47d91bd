"""Comparisons, tuning and the papers' protocols."""

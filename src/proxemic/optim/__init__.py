"""Optimiser steps of sampled rows, clipping of sparse and sharded gradients, and schedules. Imports only torch."""

from proxemic.optim.clipping import clip_norm, clip_value
from proxemic.optim.schedules import PolynomialDecay
from proxemic.optim.sparse_rows import step_rows

__all__ = ["PolynomialDecay", "clip_norm", "clip_value", "step_rows"]

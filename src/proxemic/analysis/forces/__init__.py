"""The forces of a loss on embeddings and proxies: taken apart for two classes, and their alignment over a training."""

from proxemic.analysis.forces.alignment import TrainingForces, descend, plot_force_alignment, training_forces
from proxemic.analysis.forces.two_classes import Forces, draw_forces, plot_forces, two_class_forces

__all__ = [
    "Forces",
    "TrainingForces",
    "descend",
    "draw_forces",
    "plot_force_alignment",
    "plot_forces",
    "training_forces",
    "two_class_forces",
]

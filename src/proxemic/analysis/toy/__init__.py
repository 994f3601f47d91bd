"""Embeddings that can be seen: scenes of two or three dimensions, animations, diagrams of a training and of losses."""

from proxemic.analysis.toy.loss_diagrams import plot_loss_diagrams
from proxemic.analysis.toy.scenes import (
    Scene,
    animate_scenes,
    draw_training_diagram,
    plot_scene,
    plot_scenes,
    separation,
)

__all__ = [
    "Scene",
    "animate_scenes",
    "draw_training_diagram",
    "plot_loss_diagrams",
    "plot_scene",
    "plot_scenes",
    "separation",
]

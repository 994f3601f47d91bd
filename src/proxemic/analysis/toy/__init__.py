"""Embeddings that can be seen: scenes of two or three dimensions, animations, diagrams of a training and of losses."""

from proxemic.analysis.toy.loss_diagrams import plot_loss_diagrams
from proxemic.analysis.toy.plots import animate_scenes, plot_scene, plot_scenes
from proxemic.analysis.toy.scenes import Scene, separation
from proxemic.analysis.toy.training_diagram import draw_training_diagram

__all__ = [
    "Scene",
    "animate_scenes",
    "draw_training_diagram",
    "plot_loss_diagrams",
    "plot_scene",
    "plot_scenes",
    "separation",
]

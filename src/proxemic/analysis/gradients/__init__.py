"""What the gradient of a loss depends on: characteristics and dependences measured, fields of gradients, and plots."""

from proxemic.analysis.gradients.dependence import THRESHOLD, draw_gradients, plot_gradients, score_dependence
from proxemic.analysis.gradients.fields import gradient_field, loss_values, plot_gradient_field
from proxemic.analysis.gradients.six_characteristics import Answer, Characteristics, characteristics, every_proxy_loss

__all__ = [
    "THRESHOLD",
    "Answer",
    "Characteristics",
    "characteristics",
    "draw_gradients",
    "every_proxy_loss",
    "gradient_field",
    "loss_values",
    "plot_gradient_field",
    "plot_gradients",
    "score_dependence",
]

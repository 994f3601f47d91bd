"""Understand losses and embeddings: what a loss's gradient sees, and what a trained embedding looks like."""

from proxemic.analysis.characteristics import Answer as Answer
from proxemic.analysis.characteristics import Characteristics as Characteristics
from proxemic.analysis.characteristics import characteristics as characteristics
from proxemic.analysis.characteristics import every_proxy_loss as every_proxy_loss
from proxemic.analysis.fields import gradient_field as gradient_field
from proxemic.analysis.fields import loss_values as loss_values
from proxemic.analysis.fields import plot_gradient_field as plot_gradient_field

"""Understand losses and embeddings: what a loss's gradient sees, and what a trained embedding looks like."""

from proxemic.analysis.characteristics import Answer as Answer
from proxemic.analysis.characteristics import Characteristics as Characteristics
from proxemic.analysis.characteristics import characteristics as characteristics
from proxemic.analysis.characteristics import every_proxy_loss as every_proxy_loss
from proxemic.analysis.fields import gradient_field as gradient_field
from proxemic.analysis.fields import loss_values as loss_values
from proxemic.analysis.fields import plot_gradient_field as plot_gradient_field
from proxemic.analysis.forces import Forces as Forces
from proxemic.analysis.forces import forces as forces
from proxemic.analysis.forces_pictures import plot_forces as plot_forces
from proxemic.analysis.gradient_pictures import plot_gradient_picture as plot_gradient_picture
from proxemic.analysis.landscape import Landscape as Landscape
from proxemic.analysis.landscape import WarpPotential as WarpPotential
from proxemic.analysis.landscape import landscape_of as landscape_of
from proxemic.analysis.landscape_minimum import Minimum as Minimum
from proxemic.analysis.landscape_minimum import find_minimum as find_minimum
from proxemic.analysis.landscape_pictures import plot_landscape as plot_landscape
from proxemic.analysis.score_dependence import score_dependence as score_dependence

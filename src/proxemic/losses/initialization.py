"""Initialisation of proxies: functions for the losses' ``init=`` that fill ``[classes, proxies, dim]`` in place.

Losses of cosines use only the direction of a proxy; its length divides the size of its steps.
"""

import math

from jaxtyping import Float
from torch import Tensor, nn


def kaiming_normal(proxies: Float[Tensor, "classes proxies dim"]) -> None:
    """Draw with variance ``2 / (classes · proxies)``, Kaiming's for the proxy layer's fan-out (Proxy-Anchor)."""
    nn.init.normal_(proxies, std=math.sqrt(2 / (proxies.shape[0] * proxies.shape[1])))


def kaiming_uniform(proxies: Float[Tensor, "classes proxies dim"]) -> None:
    """Draw uniformly from ``±1/√(classes · proxies)``, Kaiming's with slope √5 (SoftTriple)."""
    bound = 1 / math.sqrt(proxies.shape[0] * proxies.shape[1])
    nn.init.uniform_(proxies, -bound, bound)


def xavier_uniform(proxies: Float[Tensor, "classes proxies dim"]) -> None:
    """Draw uniformly from ``±√(6 / (classes · proxies + dim))`` (CosFace)."""
    bound = math.sqrt(6 / (proxies.shape[0] * proxies.shape[1] + proxies.shape[2]))
    nn.init.uniform_(proxies, -bound, bound)


def small_normal(proxies: Float[Tensor, "classes proxies dim"]) -> None:
    """Draw from a normal with standard deviation 0.01 (ArcFace)."""
    nn.init.normal_(proxies, std=0.01)


def eighth_normal(proxies: Float[Tensor, "classes proxies dim"]) -> None:
    """Draw from a normal with standard deviation 1/8 (ProxyNCA++)."""
    nn.init.normal_(proxies, std=1 / 8)


def unit_directions(proxies: Float[Tensor, "classes proxies dim"]) -> None:
    """Draw uniformly from the cube and scale to length 1 (SphereFace, MagFace)."""
    nn.init.uniform_(proxies, -1, 1)
    proxies.masked_fill_((proxies == 0).all(-1, keepdim=True), 1)  # in one dimension, 0 is drawn now and then
    proxies.div_(proxies.norm(dim=-1, keepdim=True))

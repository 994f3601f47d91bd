"""Where a landscape is lowest, by values alone, as the warp and the distances themselves have kinks."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.landscape.potential import Landscape, WarpPotential
from proxemic.losses.checks import check_positive

_RINGS, _ANGLES, _DOUBLINGS, _HALVINGS, _ROUNDS = 64, 128, 10, 36, 360

# Places whose values differ by no more than this share of the window's range are equally low.
_TIE = 1e-11


@dataclass(frozen=True)
class Minimum:
    """The lowest place of a landscape; among equally low ones the nearest to the own proxy.

    Args:
        place: Its two coordinates.
        value: The loss there.
        distance: Distance from the own proxy.
        off_line: Distance from the line through the own proxy and the only other; ``None`` with several others.
        runs_away: Whether the loss still falls at the border of the largest window: the minimum is then at infinity,
            and the place is where the search ended.
        flat: Whether places beside it are equally low.
    """

    place: tuple[float, float]
    value: float
    distance: float
    off_line: float | None
    runs_away: bool
    flat: bool


@torch.no_grad()
def find_minimum(landscape: Landscape, *, radius: float | None = None) -> Minimum:
    """The lowest place of a landscape in two dimensions, to within 1e-6 of the window or better.

    Eleven windows around the own proxy, each twice as wide as the one before, are searched on 64 rings of 128 places.
    In each window at most four places that are lower than their neighbours are refined on finer and finer grids of
    distances and angles, on which a kink at a distance, as the warp has at α, stays a straight line.

    Args:
        landscape: A landscape in two dimensions.
        radius: Radius of the narrowest window; ``None``: twice the distance to the nearest other proxy, or a warp's α
            where that is larger.

    Raises:
        ValueError: If an argument is not allowed.

    >>> from proxemic.analysis.landscape.potential import WarpPotential
    >>> warped = Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]]), f1=WarpPotential(3.0, 0.65, 1.5))
    >>> found = find_minimum(warped)
    >>> round(found.place[0], 4), round(found.distance, 4), found.runs_away
    (-3.0, 3.0, False)
    """
    if len(landscape.target) != 2:
        raise ValueError(
            f"landscape is of {len(landscape.target)} dimensions, but the search is in two: take landscape_of the loss."
        )
    if radius is None:
        alpha = landscape.f1.alpha if isinstance(landscape.f1, WarpPotential) else 0.0
        radius = max(2 * landscape.spacing, alpha)
    check_positive("radius", radius)
    search = _Search(landscape)
    known: list[_Candidate] = []
    for doubling in range(_DOUBLINGS + 1):
        for candidate in search.in_window(radius * 2**doubling):
            # What lies on the border is seen from the next window.
            inside = not candidate.on_border or doubling == _DOUBLINGS
            away = (search.place(minimum) - search.place(candidate) for minimum in known if minimum.settled)
            if inside and all(vector.norm() > 2 * candidate.step for vector in away):
                known.append(search.refined(candidate))
    lowest = known[0]
    for minimum in known[1:]:
        if minimum.value < lowest.value - max(lowest.tolerance, minimum.tolerance):
            lowest = minimum
    place = search.place(lowest)
    off_line = abs(lowest.distance * math.sin(lowest.angle)) if len(landscape.others) == 1 else None
    x, y = place.tolist()
    value = landscape(place.unsqueeze(0)).item()
    return Minimum((x, y), value, lowest.distance, off_line, lowest.on_border, lowest.flat)


@dataclass(frozen=True)
class _Candidate:
    distance: float
    angle: float
    value: float
    tolerance: float
    step: float
    on_border: bool
    flat: bool
    settled: bool = False


class _Search:
    """In polar coordinates around the own proxy; the angle 0 points away from the nearest other."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape, self.target = landscape, landscape.target.double()
        away = self.target - landscape.others.double()
        nearest = away[away.norm(dim=1).argmin()]
        self.turn = math.atan2(nearest[1].item(), nearest[0].item())

    def places(self, distances: Float[Tensor, " n"], angles: Float[Tensor, " n"]) -> Float[Tensor, "n 2"]:
        turned = angles + self.turn
        return self.target + distances.unsqueeze(1) * torch.stack((turned.cos(), turned.sin()), 1)

    def place(self, candidate: _Candidate) -> Float[Tensor, " 2"]:
        return self.places(*torch.tensor([[candidate.distance], [candidate.angle]], dtype=torch.float64)).squeeze(0)

    def values(self, distances: Float[Tensor, " rings"], angles: Float[Tensor, " angles"]) -> tuple[Tensor, float]:
        """The logits, one row per distance, and the difference up to which two of them count as equal."""
        values = self.landscape.logits(self.places(*torch.cartesian_prod(distances, angles).unbind(1)))
        if not values.isfinite().all():
            raise ValueError(
                f"f1 and f2 overflow within a distance of {distances.max():.3g}: give functions that grow less."
            )
        return values.unflatten(0, (len(distances), len(angles))), _TIE * (values.max() - values.min()).item()

    def in_window(self, radius: float) -> list[_Candidate]:
        """The four lowest local minima of the grid; equally low ones by their distance from the own proxy."""
        distances = torch.linspace(0, radius, _RINGS + 1, dtype=torch.float64)
        angles = torch.arange(_ANGLES, dtype=torch.float64) * (2 * math.pi / _ANGLES)
        values, tolerance = self.values(distances, angles)
        padded = F.pad(values, (0, 0, 1, 1), value=math.inf)
        low = values <= torch.stack((padded[2:], padded[:-2], values.roll(1, 1), values.roll(-1, 1))).amin(0)
        # All angles of the ring 0 are one place.
        low[0] = False
        low[0, 0] = values[0, 0] <= values[1].min() + tolerance
        level = torch.where(values <= values.min() + tolerance, values.min(), values)
        rings, turns = torch.nonzero(low).unbind(1)
        order = level[rings, turns].argsort(stable=True)[:4]
        everywhere = self.places(*torch.cartesian_prod(distances, angles).unbind(1)).unflatten(0, values.shape)
        candidates = []
        for ring, turn in zip(rings[order].tolist(), turns[order].tolist(), strict=True):
            apart = (everywhere - everywhere[ring, turn]).norm(dim=2) * (_RINGS / radius)
            beside = (apart > 0.5) & (apart < 1.5)
            flat = bool((beside & (values <= values[ring, turn] + tolerance)).any())
            place = (distances[ring].item(), angles[turn].item(), values[ring, turn].item())
            candidates.append(_Candidate(*place, tolerance, radius / _RINGS, ring == _RINGS, flat))
        return candidates

    def refined(self, candidate: _Candidate) -> _Candidate:
        """Search grids around the place, each half as wide as the one before unless the lowest is at its border."""
        if candidate.on_border:
            return candidate
        offsets = torch.linspace(-1, 1, 17, dtype=torch.float64)
        distance, angle, value = candidate.distance, candidate.angle, candidate.value
        along, around = candidate.step, 4 * math.pi / _ANGLES
        share, settled = 0.5**_HALVINGS, False
        for _ in range(_ROUNDS):
            settled = along < share * candidate.step and (around < share or distance == 0)
            if settled:
                break
            if distance == 0:
                around = math.pi  # it has no direction yet
            distances = (distance + along * offsets).clamp(min=0)
            values, tolerance = self.values(distances, angle + around * offsets)
            # Of equals the nearest to the own proxy, and to where it was.
            equal = torch.nonzero(values <= values.min() + tolerance).tolist()
            ring, turn = min(equal, key=lambda place: (place[0], abs(place[1] - 8)))
            distance, angle = distances[ring].item(), (angle + around * offsets[turn]).item()
            value = values[ring, turn].item()
            if distance == 0 or 0 < ring < 16:
                along /= 2
            if 0 < turn < 16:
                around /= 2
        return replace(candidate, distance=distance, angle=angle, value=value, settled=settled)

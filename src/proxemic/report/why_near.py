"""The section of why two pictures are near: which places of both make them similar."""

import numpy as np
import torch
from jaxtyping import Float64
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from proxemic.errors import UserError
from proxemic.pages import Section
from proxemic.pages.page import picture
from proxemic.report.judged import Judged, name_of, render
from proxemic.report.queries import hardest_first
from proxemic.retrieval import Explanation, explain_similarity

_SIDE, _EACH, _MOST = 160, 3, 12_000  # pixels, pairs of each kind, characters of a picture
_LARGE = 1 << 16  # pixels that no picture is larger than: it is read whole
# Told apart by the colour-blind.
_WARM, _COLD = (np.array(each, np.float32) for each in ([255, 140, 0], [40, 120, 255]))
_METHODS = {
    "exact": "The cosine similarity of two pictures is a sum over the pairs of their places here, as the network pools "
    "by averages or maxima, and its head is linear: the maps are exact, and what they say adds up to the similarity.",
    "gradients": "This network's embedding is no sum over places, so that the maps are approximations: the last "
    "feature map times the gradient of the similarity.",
}


def why_near(judged: Judged) -> Section | None:
    """Show pairs of a query and its nearest picture, wrong and right, and the contribution of each place."""
    embedder = judged.embedder
    if embedder is None or embedder.takes_vectors:
        return None
    side = embedder.prepare.side or _LARGE
    pairs: list[dict[str, object]] = []
    methods: set[str] = set()
    for title, rows in _pairs(judged):
        one, other = (judged.picture(row, side) for row in rows)
        if one is None or other is None:
            continue
        try:
            found = explain_similarity(embedder, one, other)
        except UserError as error:  # it gives no gradients, and will not for any other pair
            return Section("Why two pictures are near", Markup("<p>{}</p>").format(error))
        methods.add(found.method)
        pairs.append(_pair(judged, title, rows, found))
    if not pairs:
        return None
    said = " ".join(_METHODS[each] for each in sorted(methods))
    return Section("Why two pictures are near", render("why_near.html", said=said, pairs=pairs))


def _pairs(judged: Judged) -> list[tuple[str, tuple[int, int]]]:
    """Choose the worst queries whose nearest picture is wrong, and queries near the median whose nearest is right."""
    near, order = judged.found, hardest_first(judged)
    if not near.neighbours.shape[1]:
        return []
    if order is None:
        order = near.distances[:, 0].argsort(stable=True)
    found: dict[str, list[tuple[int, int]]] = {"Wrong": [], "Right": [], "Near": []}
    for start, kinds in ((0, ("Wrong",)), (len(order) // 2, ("Right", "Near"))):
        for place in order[start:].tolist():
            one, other = int(near.queries[place]), int(near.neighbours[place, 0])
            labels = judged.label(one), judged.label(other)
            kind = "Near" if None in labels else "Right" if labels[0] == labels[1] else "Wrong"
            if other >= 0 and kind in kinds and len(found[kind]) < _EACH:
                found[kind].append((one, other))
    return [(kind, rows) for kind, each in found.items() for rows in each]


def _pair(judged: Judged, title: str, rows: tuple[int, int], found: Explanation) -> dict[str, object]:
    strongest = max(float(each.abs().max()) for each in found.maps)
    sides = []
    for row, seen, contributions, role in zip(rows, found.pictures, found.maps, ("query", "nearest"), strict=True):
        label, where = judged.label(row), where_most(contributions)
        alt = f"{role}: what makes the two similar is mostly {where}"
        sides.append(
            {
                "pictures": [
                    picture(_framed(seen), _SIDE, role, _MOST),
                    picture(overlay(seen, contributions, strongest), _SIDE, alt, _MOST),
                ],
                "label": label,
                "name": name_of(judged, row),
                "where": where,
            }
        )
    places = " and ".join(f"{each.shape[0]} × {each.shape[1]}" for each in found.maps)
    return {
        "title": title,
        "similarity": found.similarity,
        "method": found.method,
        "places": places,
        "sides": sides,
    }


def _framed(seen: Image.Image) -> Image.Image:
    scale = _SIDE / max(seen.size)
    wide, high = (max(1, round(scale * side)) for side in seen.size)
    return seen.resize((wide, high), Image.Resampling.BILINEAR)


def overlay(seen: Image.Image, contributions: Float64[Tensor, "height width"], strongest: float) -> Image.Image:
    """Colour a grey picture by contributions: orange where they raise the similarity, blue where they lower it."""
    grey = np.asarray(_framed(seen).convert("L").convert("RGB"), np.float32)
    values = Image.fromarray(contributions.numpy().astype(np.float32) / (strongest or 1.0))
    heat = np.asarray(values.resize((grey.shape[1], grey.shape[0]), Image.Resampling.BILINEAR))[:, :, None]
    colour = np.where(heat >= 0, _WARM, _COLD)
    strength = 0.85 * np.abs(heat).clip(0, 1)
    return Image.fromarray((grey * 0.85 * (1 - strength) + colour * strength).clip(0, 255).astype(np.uint8))


def where_most(contributions: Float64[Tensor, "height width"]) -> str:
    """Say in which of nine parts of a picture most contributions are.

    >>> where_most(torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64))
    'at the top right'
    """
    thirds = torch.nn.functional.interpolate(contributions[None, None], (3, 3), mode="area")[0, 0]
    row, column = divmod(int(thirds.argmax()), 3)
    if row == column == 1:
        return "in the middle"
    vertical, horizontal = ("top", "", "bottom")[row], ("left", "", "right")[column]
    return f"at the {vertical} {horizontal}".replace("  ", " ").rstrip()

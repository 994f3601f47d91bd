"""Why two images are near: a section that shows which locations of both make them similar."""

import numpy as np
import torch
from jaxtyping import Float64
from markupsafe import Markup
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.errors import UserError
from proxemic.pages import Section
from proxemic.pages.page import picture
from proxemic.report.judged import Judged, name_of, render
from proxemic.report.queries import hardest_first
from proxemic.retrieval import Explanation, explain_similarity

_SIDE, _PAIRS_OF_A_KIND, _MOST = 160, 3, 12_000  # of an image: its side in pixels, and its characters
_LARGE = 1 << 16  # a side that no image exceeds, so that it is read whole
# Colour-blind readers can tell these two apart.
_WARM, _COLD = (np.array(value, np.float32) for value in ([255, 140, 0], [40, 120, 255]))
_METHODS = {
    "exact": "This similarity is a sum over the pairs of locations of both images, because the network pools by "
    "averages or maxima and its head is linear: the maps are exact, and their values add up to the similarity.",
    "gradients": "This network's embedding is not a sum over locations, so the maps are approximations: the last "
    "feature map times the gradient of the similarity.",
}


def why_near(judged: Judged) -> Section | None:
    """Show pairs of a query and its nearest image, wrong and right, and the contribution of each location."""
    embedder = judged.embedder
    if embedder is None or embedder.takes_vectors:
        return None
    side = embedder.prepare.side or _LARGE
    unit = normalize(judged.embeddings.float(), dim=1)
    pairs: list[dict[str, object]] = []
    methods: set[str] = set()
    for title, rows in _pairs(judged):
        one, other = (judged.picture(row, side) for row in rows)
        if one is None or other is None:
            continue
        try:
            found = explain_similarity(embedder, one, other, mean=unit.mean(0))
        except UserError as error:  # the network gives no gradients, for any pair
            return Section("Why two images are near", Markup("<p>{}</p>").format(error))
        methods.add(found.method)
        cosine = float(unit[rows[0]] @ unit[rows[1]])
        pairs.append(_pair(judged, title, rows, found) | {"cosine": cosine})
    if not pairs:
        return None
    said = " ".join(_METHODS[method] for method in sorted(methods))
    return Section("Why two images are near", render("why_near.html", said=said, pairs=pairs))


def _pairs(judged: Judged) -> list[tuple[str, tuple[int, int]]]:
    """Choose the worst queries whose nearest image is wrong, and queries near the median whose nearest is right."""
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
            if other >= 0 and kind in kinds and len(found[kind]) < _PAIRS_OF_A_KIND:
                found[kind].append((one, other))
    return [(kind, rows) for kind, item in found.items() for rows in item]


def _pair(judged: Judged, title: str, rows: tuple[int, int], found: Explanation) -> dict[str, object]:
    # Relative to the average location, because the values themselves would be positive nearly everywhere.
    maps = [item - item.mean() for item in found.maps]
    strongest = max(float(max(item.abs().max(), whole.mean())) for item, whole in zip(maps, found.maps, strict=True))
    sides = []
    shown = zip(rows, found.pictures, found.maps, maps, ("query", "nearest"), strict=True)
    for row, seen, contributions, relative, role in shown:
        label, where = judged.label(row), where_most(contributions)
        alt = f"{role}: what makes the two similar is mostly {where}" if where else f"{role}: what makes them similar"
        sides.append(
            {
                "pictures": [
                    picture(_framed(seen), _SIDE, role, _MOST),
                    picture(overlay(seen, relative, strongest), _SIDE, alt, _MOST),
                ],
                "label": label,
                "name": name_of(judged, row),
                "where": where,
            }
        )
    places = " and ".join(f"{item.shape[0]} × {item.shape[1]}" for item in found.maps)
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


def overlay(seen: Image.Image, values: Float64[Tensor, "height width"], strongest: float) -> Image.Image:
    """Colour a grey image by values: orange where they are positive, blue where they are negative."""
    grey = np.asarray(_framed(seen).convert("L").convert("RGB"), np.float32)
    scaled = Image.fromarray(values.numpy().astype(np.float32) / (strongest or 1.0))
    heat = np.asarray(scaled.resize((grey.shape[1], grey.shape[0]), Image.Resampling.BILINEAR))[:, :, None]
    colour = np.where(heat >= 0, _WARM, _COLD)
    strength = 0.85 * np.abs(heat).clip(0, 1)
    return Image.fromarray((grey * 0.85 * (1 - strength) + colour * strength).clip(0, 255).astype(np.uint8))


def where_most(contributions: Float64[Tensor, "height width"]) -> str:
    """Name the one of nine parts of an image that contributes most; empty if none has twice the mean of all.

    >>> where_most(torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)), where_most(torch.ones(4, 4))
    ('at the top right', '')
    """
    thirds = torch.nn.functional.interpolate(contributions[None, None], (3, 3), mode="area")[0, 0]
    if thirds.max() < 2 * thirds.abs().mean():
        return ""
    row, column = divmod(int(thirds.argmax()), 3)
    if row == column == 1:
        return "in the middle"
    vertical, horizontal = ("top", "", "bottom")[row], ("left", "", "right")[column]
    return f"at the {vertical} {horizontal}".replace("  ", " ").rstrip()

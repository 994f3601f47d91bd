"""Draw the charts of a page with Vega-Lite; the page contains the Vega library that draws them."""

import functools
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from proxemic.caches import cache_folder
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_text

with optional_dependency("train"):
    from markupsafe import Markup

MARK = '<figure class="chart">'

# Visible on white and on black, after the palette of Okabe and Ito for colour-blind readers.
COLORS = ["#0a7cc4", "#d55e00", "#009e73", "#b5651d", "#c05a9c", "#7a7f87"]

# Charts use the text colour of the page, light or dark.
_CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "style": {"guide-label": {"fill": "currentColor"}, "guide-title": {"fill": "currentColor", "fontWeight": 600}},
    "title": {"color": "currentColor", "anchor": "start"},
    "axis": {
        "aria": False,
        "domainColor": "currentColor",
        "domainOpacity": 0.3,
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "labelFontSize": 12,
        "labelLimit": 220,
        "tickColor": "currentColor",
        "tickOpacity": 0.3,
        "titleFontSize": 12,
    },
    "legend": {
        "aria": False,
        "columns": {"signal": "width < 420 ? 1 : 2"},  # on a phone, one name takes more than half of the width
        "labelFontSize": 12,
        "labelLimit": 320,
        "orient": "top",
        "titleFontSize": 12,
    },
    # A screen reader reads a chart as one image with a description, without Vega's names of marks.
    "mark": {"aria": False, "color": COLORS[0]},
    "header": {"labelColor": "currentColor", "labelFontSize": 12, "titleColor": "currentColor"},
    "range": {"category": COLORS},
    "rule": {"color": "currentColor"},
    "text": {"color": "currentColor"},
    "view": {"stroke": None},
}

_NAMES = "window.vegaEmbed = vegaEmbed;"  # what the other scripts use

# Expressions are interpreted (ast), because the policy of the page forbids compiling text.
_DRAW = """
for (const figure of document.querySelectorAll(".chart")) {
  const [place, given] = figure.children;
  const options = {actions: false, ast: true, defaultStyle: false, mode: "vega-lite", renderer: "svg",
                   tooltip: {disableDefaultStyle: true}};
  const spec = JSON.parse(given.textContent);
  window.vegaEmbed(place, spec, options).then(({view}) => {
    const drawing = place.querySelector("svg");
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", spec.description);
    drawing.removeAttribute("aria-hidden");
    place.view = view;
    place.dispatchEvent(new CustomEvent("drawn", {bubbles: true}));
  });
}
"""


def chart(spec: Mapping[str, Any], description: str) -> Markup:
    """Return a chart as HTML, as wide as the page unless the specification sets a width.

    `render_page` adds a script that draws the chart in the colours of the page. Once it is drawn, its ``div`` has the
    Vega view as ``view`` and sends a ``drawn`` event.

    Args:
        spec: Vega-Lite 5 or later with its data, such as an Altair chart's ``to_dict()``. A discrete axis y needs a
            ``height`` in pixels, without which Vega-Lite warns in the console.
        description: A sentence about what the chart shows: its caption, which a screen reader reads instead of the
            chart. Put the numbers into a table.

    Example:
        >>> encoding = {axis: {"field": axis, "type": "quantitative"} for axis in "xy"}
        >>> spec = {"data": {"values": [{"x": 1, "y": 2}]}, "mark": "point", "encoding": encoding}
        >>> "<figcaption>A point.</figcaption>" in chart(spec, "A point.")
        True
    """
    from jinja2.utils import htmlsafe_json_dumps

    single = {"width", "vconcat", "hconcat", "concat", "facet", "repeat", "spec"}.isdisjoint(spec)
    fitting = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}} if single else {}
    given = {**fitting, "description": description, **spec}
    given["config"] = _CONFIG | given.get("config", {})
    return Markup(
        MARK + '<div></div><script type="application/json">{}</script><figcaption>{}</figcaption></figure>'
    ).format(htmlsafe_json_dumps(given), description)


@functools.cache
def vega() -> tuple[str, ...]:
    """Return the scripts that draw the charts of a page: Vega, and the code that starts it."""
    with optional_dependency("train"):
        import vl_convert

    # Making the bundle takes seconds.
    cached = cache_folder("pages") / f"vega-{version('vl-convert-python')}.js"
    try:
        bundle = cached.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        bundle = vl_convert.javascript_bundle(_NAMES).replace("</script", r"<\/script").replace("<!--", r"<\!--")
        with suppress(UserError):  # without a cache, charts still work
            write_text(cached, bundle)
    return bundle, _DRAW

"""The page of `proxemic clean`: one HTML file with small copies of the pictures, that needs no network."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from proxemic.data.pixels import UnreadableImageError
from proxemic.files import readable, write_text

if TYPE_CHECKING:
    from proxemic.retrieval.cleaning.cleaning import Cleaning

SHOWN, _SIDE = 100, 96

_TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>proxemic clean</title>
<style>
body { font-family: system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; padding: .5rem; border: 1px solid #ccc; border-radius: 4px; max-width: 16rem; }
figcaption { font-size: .8rem; overflow-wrap: anywhere; }
img, .none { width: 96px; height: 96px; object-fit: contain; background: #eee; }
.none { display: inline-block; }
.warn { color: #a00000; font-weight: bold; }
</style>
</head>
<body>
<h1>proxemic clean</h1>
<p>{{ summary }}</p>
{% macro picture(name) %}{% set data = thumbnail(name) %}{% if data -%}
<img alt="" src="{{ data }}">{% else %}<span class="none"></span>{% endif %}{% endmacro %}
{% macro some(all) %}{% if all|length > shown %}<p>The first {{ shown }} of {{ "{:,}".format(all|length) }}; \
the table beside this page has all.</p>{% elif not all %}<p>None.</p>{% endif %}{% endmacro %}
<h2>Suspected labels</h2>
{{ some(labels) }}<div class="cards">
{% for each in labels[:shown] %}<figure>{{ picture(each.path) }}
<figcaption><b>{{ each.label }}</b>, rather {{ each.suggested }}? {{ "%.3f"|format(each.score) }}<br>{{ each.path }}\
</figcaption></figure>
{% endfor %}</div>
<h2>Duplicates</h2>
{{ some(duplicates) }}<div class="cards">
{% for each in duplicates[:shown] %}<figure>{{ picture(each.path) }} {{ picture(each.of) }}
<figcaption>{{ each.kind }}, group {{ each.group }}\
{% if each.across_splits %} <span class="warn">{{ each.split }} repeats {{ each.split_of }}</span>{% endif %}\
{% if each.labels_differ %} <span class="warn">{{ each.label }} and {{ each.label_of }}</span>{% endif %}\
<br>{{ each.path }}<br>{{ each.of }}</figcaption></figure>
{% endfor %}</div>
<h2>Outliers</h2>
{{ some(outliers) }}<div class="cards">
{% for each in outliers[:shown] %}<figure>{{ picture(each.path) }}
<figcaption>{{ "%.1f"|format(each.score) }} {{ each.label or "" }}<br>{{ each.path }}</figcaption></figure>
{% endfor %}</div>
{% if unreadable %}<h2>Unreadable</h2>
{{ some(unreadable) }}<ul>
{% for name, why in unreadable[:shown] %}<li>{{ name }}: {{ why }}</li>
{% endfor %}</ul>
{% endif %}</body>
</html>
"""


def write_page(cleaning: "Cleaning", path: Path) -> Path:
    """Write the page, whole or not at all, with the first hundred of each table."""
    from jinja2 import Environment, StrictUndefined  # which comes with torch

    def thumbnail(name: str) -> str | None:
        if name not in cleaning.pixels:
            return None
        pixels, row = cleaning.pixels[name]
        try:
            return data_url(pixels.load(row, _SIDE))
        except UnreadableImageError:  # it was there a moment ago
            return None

    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE)
    text = template.render(
        summary=cleaning.summary(),
        labels=cleaning.labels,
        duplicates=cleaning.duplicates,
        outliers=cleaning.outliers,
        unreadable=[*cleaning.unreadable.items()],
        shown=SHOWN,
        thumbnail=thumbnail,
    )
    write_text(path, readable(text))
    return path


def data_url(image: Image.Image) -> str:
    """A small copy of a picture as a JPEG within its address."""
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"

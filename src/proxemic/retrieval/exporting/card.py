"""Write the model card: Markdown with the front matter of model hubs."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxemic import __version__
from proxemic.extras import optional_dependency
from proxemic.files import read_json, readable
from proxemic.metrics import Interval
from proxemic.retrieval.exporting.parity import Measured
from proxemic.runs.directory import RunDirectory
from proxemic.runs.onnx_files import ONNX_NOTE
from proxemic.runs.verdict import BEFORE
from proxemic.tables import percent

QUANTISATION = {
    "static": "Weights and activations have 8 bits, with ranges measured on training images; the head is in float32.",
    "dynamic": "The weights of matrix products have 8 bits, and their inputs as they run; the rest is in float32.",
}


def write_card(
    file: Path,
    *,
    name: str,
    description: Mapping[str, Any],
    images: str,
    model: Measured,
    exported: Measured,
    run: RunDirectory | None,
    whole_test: bool,
    trained_on: int,
    licence: str | None,
) -> str:
    """Return the text of the card; `whole_test` says that `images` is the whole test of the run."""
    with optional_dependency("train"):
        import jinja2
    recipe = _recipe(run)
    metrics = read_json(run.metrics) if run is not None and run.metrics.exists() else {}
    untrained = metrics.get("untrained") if whole_test else None
    untrained = untrained if isinstance(untrained, dict) else {}
    intervals = {
        key: interval for key, interval in exported.metrics.intervals().items() if not math.isnan(interval.low)
    }
    rows = [
        [key, percent(value), _bounds(intervals.get(key))]
        + ([percent(untrained.get(key))] if untrained else [])
        + [percent(exported.metrics.chance.get(key))]
        for key, value in exported.metrics.items()
    ]
    facts = {
        "file": f"`{file.name}`, {'ONNX' if file.suffix == '.onnx' else 'program of torch.export'}, "
        f"{description['precision']}, {description['bytes']:,} bytes",
        "input": f"`images`, float32 [batch, {description['preprocessing']['channels']}, "
        f"{description['preprocessing']['size']}, {description['preprocessing']['size']}]",
        "output": f"`embeddings`, float32 [batch, {description['dim']}]",
        "backbone": _plain(description["backbone"]),
        "licence": _plain(licence) if licence else None,
        "made by": f"proxemic {__version__}",
    }
    environment = jinja2.Environment(  # Markdown, whose own signs `_plain` escapes
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    return environment.get_template("card.md").render(
        description,
        front_matter=_front_matter(name, file, recipe, images, exported, licence),
        name=_plain(name),
        suffix=file.suffix,
        json=file.with_suffix(".json").name,
        note=ONNX_NOTE,
        facts=[(key, value) for key, value in facts.items() if value],
        stopped=_plain(description.get("unfinished", "")),
        images=_plain(images),
        trained_on=trained_on,
        interval="95% interval",
        has_intervals=bool(intervals),
        before=BEFORE["untrained"] if untrained else None,
        results=rows,
        selected_on=_plain(f"the {metrics['selected_on']} images") if metrics.get("selected_on") else None,
        recalls=[percent(model.recall), percent(exported.recall)],
        difference=f"{model.difference(exported):.1e}",
        queries=f"{exported.metrics.queries:,}",
        how=description["preprocessing"],
        training=_training(recipe, metrics),
        quantisation=QUANTISATION.get(description.get("quantisation", "")),
        licence=licence,
    )


def _recipe(run: RunDirectory | None) -> dict[str, Any]:
    from proxemic.recipes.yaml_files import read_yaml  # which imports much

    content = read_yaml(run.recipe) if run is not None else None
    return content if isinstance(content, dict) else {}


def _training(recipe: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe what the run was trained on and how, from its recipe and results."""
    if not recipe:
        return []
    data, model, images = (_part(recipe, key) for key in ("data", "model", "images"))
    root = _part(data, "init_args").get("root")
    counts = [f"{metrics[key]:,} {word}" for key, word in _COUNTS.items() if isinstance(metrics.get(key), int)]
    start = "pretrained weights" if model.get("pretrained") else "a file of weights" if model.get("weights") else None
    facts = {
        "images": f"{_last(data.get('class_path'))}{f' of {Path(str(root)).name}' if root else ''}",
        "trained on": ", ".join(counts),
        "loss": _last(_part(recipe, "loss").get("class_path")),
        "began with": start or "random weights",
        "image size": f"{images.get('size')} pixels",
        "epochs": f"{_part(recipe, 'training').get('epochs')}, of which {metrics.get('epoch')} was selected",
        "seed": str(recipe.get("seed")),
    }
    return [(key, _plain(value)) for key, value in facts.items() if value]


_COUNTS = {"train_images": "images", "train_classes": "classes"}


def _front_matter(
    name: str, file: Path, recipe: Mapping[str, Any], images: str, exported: Measured, licence: str | None
) -> str:
    from proxemic.recipes.yaml_files import write_yaml

    model, loss = _part(recipe, "model"), _last(_part(recipe, "loss").get("class_path"))
    form = "onnx" if file.suffix == ".onnx" else "torch-export"
    named = [_tag(str(value)) for value in (model.get("backbone"), loss) if value]
    content = {
        **({"license": licence} if licence else {}),
        "library_name": "proxemic",
        "pipeline_tag": "image-feature-extraction",
        "tags": [form, "metric-learning", "image-retrieval", "embeddings", *named],
        "metrics": [*exported.metrics],
        "model-index": [
            {
                "name": readable(name),
                "results": [
                    {
                        "task": {"type": "image-retrieval", "name": "Image retrieval"},
                        "dataset": {"type": "other", "name": readable(images)},
                        "metrics": [{"type": key, "value": round(value, 6)} for key, value in exported.metrics.items()],
                    }
                ],
            }
        ],
    }
    return f"---\n{write_yaml(content)}---\n\n"


def _part(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = content.get(key)
    return part if isinstance(part, Mapping) else {}


def _last(path: object) -> str:
    return str(path or "").rpartition(".")[2]


def _tag(text: str) -> str:
    """Convert a name to the form of tags on model hubs.

    >>> _tag("ProxyAnchorLoss"), _tag("resnet50.a1_in1k"), _tag("hf:facebook/dinov2")
    ('proxy-anchor-loss', 'resnet50.a1-in1k', 'hf-facebook-dinov2')
    """
    dashed = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text)
    return re.sub(r"[^a-z0-9.]+", "-", dashed.lower()).strip("-")[:60]


def _bounds(interval: Interval | None) -> str:
    return "–" if interval is None else f"{percent(interval.low)} … {percent(interval.high)}"


def _plain(text: object) -> str:
    r"""Escape a foreign text as plain text on one line of Markdown, safe in tables too.

    >>> _plain("<b>a|b</b>\n[x](y)")
    '&lt;b&gt;a\\|b&lt;/b&gt; \\[x\\](y)'
    """
    line = " ".join(readable(str(text)).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", line)

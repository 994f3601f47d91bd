"""The first section of a report of a run: how good the run is, and what to do next."""

import math

from markupsafe import Markup

from proxemic.pages import Section
from proxemic.report.judged import Judged
from proxemic.report.queries import has_labels
from proxemic.runs.directory import RunDirectory
from proxemic.runs.verdict import BEFORE, START_KEPT, next_commands, recorded_verdict, verdict
from proxemic.studies.finished import FinishedRun


def verdict_on_run(run: FinishedRun, judged: Judged | None) -> Section:
    """Say how good a run is on the images of its report, or by what it has recorded if there are none."""
    recorded = run.metrics or {}
    said = recorded_verdict(recorded) if judged is None else verdict_on(judged)
    shown = lead(said or "The run held no classes out, so this report cannot say how good it is.")
    if judged is not None and judged.split == recorded.get("selected_on"):
        shown += Markup("<p>{}</p>").format("The epoch was selected on the same classes, which favours this result.")
    if recorded.get("kept") in BEFORE:
        head = " Its embeddings come from the new head." if recorded.get("kept") == "untrained" else ""
        shown += Markup('<p class="banner">{}{}</p>').format(START_KEPT, head)
    commands = next_commands(run.path, recorded)
    commands["find wrong labels and duplicates"] = f"proxemic clean IMAGES --model {run.path} --out cleaned"
    items = [Markup("<dt>{}</dt><dd><code>{}</code></dd>").format(*item) for item in commands.items()]
    return Section(
        "Summary", shown + Markup('<h3>What to do next</h3><dl class="next">{}</dl>').format(Markup().join(items))
    )


def verdict_on(judged: Judged) -> str:
    """Say in a sentence how good embeddings are; return an empty text without labels."""
    if not has_labels(judged):
        return ""
    found, names, trained = judged.metrics, judged.images.class_names, None
    classes = found.labels[found.evaluated].unique().tolist()
    if judged.run is not None:
        trained = RunDirectory(judged.run.path).read_classes()
    interval = judged.intervals["recall@1" if "recall@1" in found else next(iter(found))]
    return verdict(
        found,
        classes=len(classes),
        queries=found.queries,
        trained_on=len({names[class_] for class_ in classes} & trained.trained) if trained else 0,
        before=judged.metrics_before.get("start") or judged.metrics_before.get("untrained"),
        chance=found.chance,
        bounds=None if math.isnan(interval.low) else (interval.low, interval.high),
    )


def lead(text: str) -> Markup:
    """Render the sentence that a page begins with."""
    return Markup('<p class="lead">{}</p>').format(text)

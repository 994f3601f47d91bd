"""Tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from proxemic.runs.evaluate import computed_in
from proxemic.studies.statistics import few_classes
from proxemic.tables import Table, percent


def print_metrics(result: Mapping[str, Any]) -> None:
    """Print the content of ``metrics.json``: test metrics, beside those of the start and the chance level.

    Where there are no test classes, those of the validation.
    """
    if "phases" in result:
        ends = {"plateau": "to a plateau", "epochs": "all that there may be"}
        phases = [f"{phase['epochs']} epochs, {ends[phase['reason']]}" for phase in result["phases"]]
        print(f"Trained for {'; then, in the second phase, '.join(phases)}.")
    if result.get("split") == "nothing held out":
        print(f"Trained on all {result['train_classes']:,} classes, {result['train_images']:,} images.")
    if "test" not in result:
        if "validation" in result:
            columns = ("validation", "validation_start", "validation_untrained")
            shown = {name.removeprefix("validation_"): result[name] for name in columns if name in result}
            print_table(f"Validation, which chose {_chosen(result)}{computed_in(result.get('precision'))}", shown)
        return
    trained_on, classes = result.get("test_classes_trained_on", 0), result["test_classes"]
    closed = " (closed set)" if result.get("split") == "closed-set" else ""
    all_of_them = "" if trained_on == classes else f"{trained_on} of them "
    unseen = f"classes, {all_of_them}TRAINED ON{closed}" if trained_on else "unseen classes"
    title = f"Test: {classes} {unseen}, {result['test_queries']:,} queries, {_chosen(result)}"
    title += computed_in(result.get("precision"))
    if result["selected_on"] == "test":
        title += " CHOSEN ON THE TEST CLASSES"
    print_table(title, {name: result[name] for name in ("test", "start", "untrained", "chance") if name in result})
    if few := few_classes(result["test_classes"]):
        print(few)
    if result["test_queries_left_out"]:
        print(f"{result['test_queries_left_out']} queries have no other image of their class and are left out.")


def _chosen(result: Mapping[str, Any]) -> str:
    """Say which network was kept; results of earlier versions give only the epoch."""
    starts = {"start": "the network before training, without a head", "untrained": "the network before training"}
    kept, epoch = result.get("kept", ""), f"epoch {result['epoch']}"
    if kept == "interpolation":
        return f"weights at {result['alpha']:g} from the start to {epoch}"
    return starts.get(kept, f"{epoch}, averaged weights" if kept == "average" else epoch)


def print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print metrics in percent, one row per metric; a missing value, such as a chance level, is a dash."""
    metrics = next(iter(columns.values()))
    rows = [[metric, *(percent(column.get(metric)) for column in columns.values())] for metric in metrics]
    print(Table(["metric", *columns], rows, title).text())

"""The snapshots of embeddings and proxies that a run kept during its training."""

from safetensors.torch import load_file

from proxemic.analysis.toy import Scene
from proxemic.studies.finished import Run

HOW_TO_KEEP = "--training.callbacks '[{class_path: proxemic.training.Snapshots}]'"


def read_snapshots(run: Run) -> dict[int, Scene]:
    """The scene of every snapshot, by its epoch; empty where there are none."""
    paths = sorted((run.path / "snapshots").glob("epoch-*.safetensors"))
    contents = {int(path.stem.removeprefix("epoch-")): load_file(path) for path in paths}
    return {
        epoch: Scene(content["embeddings"], content["labels"], content.get("proxies"))
        for epoch, content in contents.items()
    }

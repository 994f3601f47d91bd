"""The network before training; an epoch is only chosen if it is better."""

from lightning.pytorch import Callback, LightningModule, Trainer

from proxemic.data import ImageSet
from proxemic.models import save_model
from proxemic.runs.starts import BothStarts, better_start, evaluate_starts
from proxemic.tables import percent
from proxemic.training.callbacks.retrieval import RetrievalCallback
from proxemic.training.module import EmbeddingTask
from proxemic.training.record import Session, write_chosen


class KeepStart(Callback):
    """Keeps the network before training and evaluates it, with and without its new head, for selection.

    A run that is killed before its first checkpoint repeats this.
    """

    def __init__(self, session: Session, evaluator: RetrievalCallback | None) -> None:
        self.session, self.evaluator = session, evaluator

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        session, task = self.session, pl_module
        recipe, evaluation, record = session.recipe, session.recipe.evaluation, session.record
        assert isinstance(task, EmbeddingTask)
        if trainer.global_step > 0:
            return
        wanted = evaluation.start or evaluation.untrained or recipe.training.interpolate
        if task.processes.is_first and wanted:
            save_model(session.run.start, task.model, recipe.preprocessing)
        if self.evaluator is None or not evaluation.start:
            return
        assert isinstance(self.evaluator.images, ImageSet)
        with session.times.of("validation"):
            network = BothStarts(task.model)
            embeddings = self.evaluator.embed(network).split([*network.widths.values()], dim=1)
            parts = dict(zip(network.widths, embeddings, strict=True))
            starts = evaluate_starts(parts, self.evaluator.images, evaluation)
        record.starts, metric = starts, evaluation.metric
        # The first process decides for all: the last digits may differ between machines.
        if better := task.processes.broadcast(better_start(starts, metric)):
            if better == "untrained" and task.shards is not None:
                task.shards.save_start(task.proxies)
            record.best, record.kept = {"epoch": 0, "step": 0, **starts[better]}, better
            if task.processes.is_first:
                write_chosen(session, task.model, task.loss, task.shards)
        shown = {name: percent(values[metric]) for name, values in starts.items()}
        line = f"before training  validation {metric} {shown.get('start', 'not finite')}"
        if recipe.model.head != "none":
            line += f", new head {shown.get('untrained', 'not finite')}"
        session.report(line)

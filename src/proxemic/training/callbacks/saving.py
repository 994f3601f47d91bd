"""Saves a run's checkpoint and the files that are derived from it."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from proxemic.tables import percent
from proxemic.training.callbacks.average import WeightAverage
from proxemic.training.callbacks.stopping import Signals
from proxemic.training.module import EmbeddingTask
from proxemic.training.record import Session, write_chosen


class SaveRun(Checkpoint):
    """Saves a run so that it can be killed at any moment and resumed with the same result.

    After each epoch, it writes the checkpoint; then, if the epoch is chosen, the model and the proxies; then the
    history. The later files can be written from the checkpoint: a run killed between two writes makes up for the
    missing files when it is resumed, and one killed before the checkpoint repeats the evaluation. Only the first
    process writes, and all processes stop after the same step. Lightning calls checkpoint callbacks after all others.
    """

    def __init__(self, session: Session, average: WeightAverage | None, signals: Signals) -> None:
        self.session, self.average, self.signals = session, average, signals
        self.run, self.recipe, self.record = session.run, session.recipe, session.record
        self._stops_after_epoch = False
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return self.record.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self.record).update(state_dict)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The run may have been killed between the checkpoint and the files after it.
        if self.record.best is not None and self.record.best["step"] == self.record.step:
            self._write_best(pl_module)
        if self.record.rows and trainer.is_global_zero:
            self._write_history()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.heed_sigterm()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _flush_logs(trainer)
        if self._stops_after_epoch:
            # Not at the end of the epoch, as Lightning has logged its values only now.
            self.signals.leave(f"after epoch {trainer.current_epoch}")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return  # the epoch is about to end and save
        due = time.monotonic() - self._saved_at > 60 * self.recipe.training.checkpoint_minutes
        stopping, due = self.signals.processes.any(self.signals.stopping, due)
        if stopping or due:
            self._save(trainer)
        if stopping:
            self.signals.leave(f"in epoch {trainer.current_epoch + 1}, after step {trainer.global_step}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        row = self.record.rows[-1]
        with self.session.times.of("saving"):
            self._save(trainer)
            if self.record.best is not None and self.record.best["step"] == row["step"]:
                self._write_best(pl_module)
            if trainer.is_global_zero:
                self._write_history()
        self.session.report(self._line(row, trainer))
        if sum(phase.epochs for phase in self.record.ended) == len(self.record.rows):
            self.session.report(self._why_ended())
        (self._stops_after_epoch,) = self.signals.processes.any(self.signals.stopping)
        if self.session.on_epoch is not None and not self._stops_after_epoch:
            try:
                self.session.on_epoch(row)
            except Exception as error:
                self.session.raised = error
                raise

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.signals.stopping or self._stops_after_epoch:
            self.signals.leave("after the last epoch")

    def _save(self, trainer: Trainer) -> None:
        task = trainer.lightning_module
        assert isinstance(task, EmbeddingTask)
        task.check_weights()
        self.record.step = trainer.global_step
        _flush_logs(trainer)
        trainer.save_checkpoint(self.run.checkpoint)
        if task.shards is not None and trainer.is_global_zero:
            task.shards.drop_others()
        self._saved_at = time.monotonic()

    def _write_best(self, task: LightningModule) -> None:
        assert isinstance(task, EmbeddingTask)
        if task.processes.is_first:
            is_average = self.average is not None and self.record.kept == "average"
            model = self.average.network if is_average else task.model  # type: ignore[union-attr]
            write_chosen(self.session, model, task.loss, task.shards)

    def _write_history(self) -> None:
        rows, ended = self.record.rows, self.record.ended
        if self.recipe.training.until_plateau is not None and self.recipe.second_phase is not None:
            first = ended[0].epochs if ended else self.recipe.lengths[0]
            rows = [{**row, "phase": 1 if row["epoch"] <= first else 2} for row in rows]
        self.run.write_history(rows)

    def _line(self, row: dict[str, float], trainer: Trainer) -> str:
        samples = trainer.num_training_batches * self.recipe.batches.size
        name, best = self.recipe.evaluation.metric, self.record.best
        line = f"epoch {row['epoch']:.0f}/{trainer.max_epochs}  loss {row['loss']:.4f}"
        if name in row and best is not None:
            at = f"epoch {best['epoch']:.0f}" if best["epoch"] else "before training"
            averaged = f", averaged {percent(row[f'average_{name}'])}" if self.average is not None else ""
            line += f"  validation {name} {percent(row[name])}{averaged}  (best {percent(best[name])}, {at})"
        return f"{line}  {samples / max(row['seconds'], 1e-3):,.0f} {self.recipe.kind}/s"

    def _why_ended(self) -> str:
        until, metric, last = self.recipe.training.until_plateau, self.recipe.evaluation.metric, self.record.ended[-1]
        assert until is not None
        phases = ("The first phase", "The second phase") if self.recipe.second_phase else ("Training",)
        name = phases[len(self.record.ended) - 1]
        if last.reason == "epochs":
            return f"{name} ended after all of its {last.epochs} epochs, before a plateau."
        by = f" by more than {until.min_improvement:g}" if until.min_improvement else ""
        return (
            f"{name} ended after {last.epochs} epochs, at a plateau: validation {metric} has not grown{by} in "
            f"{'1 epoch' if until.patience == 1 else f'{until.patience} epochs'}."
        )


def _flush_logs(trainer: Trainer) -> None:
    # These values are not logged again by a run that is resumed from the checkpoint.
    for logger in trainer.loggers:
        logger.save()

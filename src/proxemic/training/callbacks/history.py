"""The history of a run: a row of values per epoch, which decides on the chosen epoch and the end of phases."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from proxemic.files import write_json
from proxemic.training.callbacks.average import WeightAverage
from proxemic.training.callbacks.measures import EpochMeasure
from proxemic.training.callbacks.retrieval import RetrievalCallback
from proxemic.training.data_module import TrainingData
from proxemic.training.module import EmbeddingTask
from proxemic.training.phases import EndedPhase, ended_phases
from proxemic.training.record import Session


class History(Callback):
    """After each epoch, adds a row to the record, keeps the epoch if it is the best, and ends a phase at its plateau.

    It must come after all callbacks that evaluate something. Before each epoch it passes its number to the batches,
    whose order and augmentation depend on it. Without an evaluator, the last epoch is chosen.
    """

    def __init__(self, session: Session, evaluator: RetrievalCallback | None, average: WeightAverage | None) -> None:
        self.session, self.recipe, self.record = session, session.recipe, session.record
        self.evaluator, self.average = evaluator, average
        self.loss_sum: Tensor | float = 0.0
        self.batches = 0
        self._epoch_began = self._epoch_ended = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        loss_sum = self.loss_sum.detach().cpu() if isinstance(self.loss_sum, Tensor) else self.loss_sum
        return {"loss_sum": loss_sum, "batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loss_sum, self.batches = state_dict["loss_sum"], state_dict["batches"]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_phases(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        before = {name: value for measure in _measures(trainer) for name, value in measure.before.items()}
        if before and trainer.is_global_zero:
            write_json(self.session.run.measured_before, before)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_began = time.monotonic()
        data: TrainingData = trainer.datamodule  # type: ignore[attr-defined] # Lightning sets it in fit
        data.batches.set_epoch(trainer.current_epoch)  # Lightning sets the epoch only in its own samplers

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any, **__: Any
    ) -> None:
        # Summed on its device, without waiting for a GPU.
        self.loss_sum, self.batches = outputs["loss"].detach() + self.loss_sum, self.batches + 1
        self._epoch_ended = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seconds = self._epoch_ended - self._epoch_began
        self.session.times.add("training", seconds)
        self.session.times.add("validation", time.monotonic() - self._epoch_ended)
        row: dict[str, float] = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step}
        row["loss"] = float(self.loss_sum) / self.batches
        self.loss_sum, self.batches = 0.0, 0
        parts = {"epoch": self.evaluator, "average": self.average}
        values = {name: part.latest for name, part in parts.items() if part is not None and part.latest is not None}
        row |= values.get("epoch", {})
        if self.average is not None and values:
            average = values.get("average") or dict.fromkeys(values["epoch"], math.nan)  # if it has not begun
            row |= {f"average_{name}": value for name, value in average.items()}
        measured = {name: value for measure in _measures(trainer) for name, value in measure.latest.items()}
        row |= measured | {"seconds": round(seconds, 3)}
        self.record.rows.append(row)
        assert isinstance(pl_module, EmbeddingTask)
        if self.recipe.evaluation.metric in row and pl_module.plateau is not None:
            # Here, because Lightning would do it after the checkpoint, which would not include it.
            pl_module.plateau.step(row[self.recipe.evaluation.metric])
        self._choose(row, values, measured)
        self._end_phases(trainer)

    def _choose(
        self, row: dict[str, float], values: Mapping[str, Mapping[str, float]], measured: Mapping[str, float]
    ) -> None:
        metric, best = self.recipe.evaluation.metric, self.record.best
        begun = self.average is not None and self.average.has_begun
        kept = max(values, key=lambda name: values[name][metric], default="average" if begun else "epoch")
        if not values or best is None or values[kept][metric] > best[metric]:
            self.record.best = {"epoch": row["epoch"], "step": row["step"], **values.get(kept, {}), **measured}
            self.record.kept = kept

    def _end_phases(self, trainer: Trainer) -> None:
        """Begin the second phase, or end the training, once the metric of the present phase has reached a plateau."""
        until, rows = self.recipe.training.until_plateau, self.record.rows
        if until is None or not rows:
            return
        task = trainer.lightning_module
        assert isinstance(task, EmbeddingTask)
        values = [row[self.recipe.evaluation.metric] for row in rows]
        ended = [asdict(phase) for phase in ended_phases(values, self.recipe.lengths, until)]
        # The first process decides for all: the last digits may differ between machines.
        self.record.ended = [EndedPhase(**phase) for phase in json.loads(task.processes.broadcast(json.dumps(ended)))]
        lengths = [phase.epochs for phase in self.record.ended]
        trainer.fit_loop.max_epochs = sum(lengths) + sum(self.recipe.lengths[len(lengths) :])
        if lengths and task.second is not None:
            task.second_begins = lengths[0]


def _measures(trainer: Trainer) -> list[EpochMeasure]:
    return [callback for callback in trainer.callbacks if isinstance(callback, EpochMeasure)]  # type: ignore[attr-defined]

"""What a run keeps of each epoch: checkpoint, best weights, history; and how it stops on Ctrl-C."""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import safetensors.torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from proxemic.errors import Interrupted
from proxemic.files import write_atomically, write_json
from proxemic.models import EmbeddingModel, save_model
from proxemic.models.embedding import without_head
from proxemic.tables import percent
from proxemic.training.epoch_metrics import EpochMeasure
from proxemic.training.module import EmbeddingTask
from proxemic.training.multiprocess.processes import Processes
from proxemic.training.phases import EndedPhase, ended_phases
from proxemic.training.recipe import Recipe
from proxemic.training.retrieval_callback import RetrievalCallback
from proxemic.training.run_directory import RunDirectory
from proxemic.training.start import BothStarts, better_start, evaluate_starts
from proxemic.training.times import Times
from proxemic.training.weight_average import WeightAverage


@dataclass(frozen=True)
class Display:
    """Who is told what on the way: of lines for the user, of each new row of the history, and of where time goes."""

    report: Callable[[str], object]
    bars: bool
    on_epoch: Callable[[Mapping[str, float]], object] | None
    times: Times


class RunCheckpointer(Checkpoint):
    """Saves a run such that it can be killed at any moment and resumed with the same result.

    Before the first step, the network is kept as the start, and evaluated as after an epoch, also without its new head;
    a run that is killed before its first checkpoint does so again. After each epoch, once the held-out images are
    evaluated, the checkpoint is written; then, if the metric is better than ever, the model and the proxies; then the
    history. All of these follow from the checkpoint: a run that is killed between two of the writes makes up for the
    missing ones when it is resumed, and one that is killed before the checkpoint evaluates again. Without an evaluator
    the last epoch is the best. The first process writes and reports, and all processes stop after the same step.
    """

    def __init__(
        self,
        run: RunDirectory,
        recipe: Recipe,
        evaluator: RetrievalCallback | None,
        display: Display,
        processes: Processes,
        average: WeightAverage | None = None,
    ) -> None:
        self.run, self.recipe, self.evaluator, self.average = run, recipe, evaluator, average
        self.display, self.processes = display, processes
        self.rows: list[dict[str, float]] = []
        self.best: dict[str, float] | None = None
        self.kept = "epoch"  # or its average, or which of the starts where no epoch was better
        self.starts: dict[str, dict[str, float]] = {}
        self.ended: list[EndedPhase] = []
        self.loss_sum: Tensor | float = 0.0
        self.batches = 0
        self.step = 0
        self.stopping = False
        self._stops_after_epoch = False
        self._process = os.getpid()
        self._left = False
        self._saved_at = self._epoch_began = self._epoch_ended = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        loss_sum = self.loss_sum.detach().cpu() if isinstance(self.loss_sum, Tensor) else self.loss_sum
        return {
            "rows": self.rows,
            "best": self.best,
            "kept": self.kept,
            "starts": self.starts,
            "loss_sum": loss_sum,
            "batches": self.batches,
            "step": self.step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.best = state_dict["rows"], state_dict["best"]
        # A run that an earlier version began was not evaluated before its first step.
        self.kept, self.starts = state_dict.get("kept", "epoch"), state_dict.get("starts", {})
        self.loss_sum, self.batches = state_dict["loss_sum"], state_dict["batches"]
        self.step = state_dict["step"]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_phases(trainer)
        # A kill may have come between the checkpoint and what is written after it.
        if self.best is not None and self.best["step"] == self.step:
            self._write_best(_task(trainer))
        if self.rows and self.processes.is_first:
            self._write_history()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        before = {name: value for measure in _measures(trainer) for name, value in measure.before.items()}
        if before and self.processes.is_first:
            write_json(self.run.measured_before, before)
        # Not sooner: Lightning would join its own handler to ours, which ends the process unsaved and without a word.
        signal.signal(signal.SIGTERM, self._stop)
        if trainer.global_step == 0:  # there is no checkpoint yet
            self._keep_start(trainer)

    def _keep_start(self, trainer: Trainer) -> None:
        """Keep the network of before the first step, and let it stand for selection."""
        task, evaluation = _task(trainer), self.recipe.evaluation
        wanted = evaluation.start or evaluation.untrained or self.recipe.training.interpolate
        if self.processes.is_first and wanted:
            save_model(self.run.start, task.model, self.recipe.preprocessing)
        if self.evaluator is None or not evaluation.start:
            return
        with self.display.times.of("validation"):
            network = BothStarts(task.model)
            embeddings = self.evaluator.embed(trainer, network).split([*network.widths.values()], dim=1)
            parts = dict(zip(network.widths, embeddings, strict=True))
            self.starts = evaluate_starts(parts, self.evaluator.images, evaluation)
        metric = evaluation.metric
        # The first process decides for all: the last digits may differ between machines.
        if better := self.processes.broadcast(better_start(self.starts, metric)):
            if better == "untrained" and task.shards is not None:
                task.shards.save_start(task.proxies)
            self.best, self.kept = {"epoch": 0, "step": 0, **self.starts[better]}, better
            self._write_best(task)
        shown = {name: percent(values[metric]) for name, values in self.starts.items()}
        line = f"start  validation {metric} {shown.get('start', 'not finite')}"
        if self.recipe.model.head != "none":
            line += f", with its head {shown.get('untrained', 'not finite')}"
        self.display.report(line)

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Stop on Ctrl-C, and on SIGUSR1, which SLURM can be asked to send before a job's time is up.

        Enter it before the data workers start, which SLURM (``--signal=USR1@90``) sends SIGUSR1 too and would end, and
        leave it once Lightning has restored the handlers that it found.
        """
        numbers = [signal.SIGINT, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]  # not on Windows
        handlers = {number: signal.signal(number, self._stop) for number in numbers}
        # `on_train_start` takes its place, when Lightning has put its own there, which holds the trainer and its data.
        handlers[signal.SIGTERM] = signal.getsignal(signal.SIGTERM)
        try:
            yield
            if self.stopping or self._stops_after_epoch:
                self._leave("after the last epoch")
        finally:
            for number, handler in handlers.items():
                # The signal may reach another process first, and all have stopped before it comes to this one.
                stopped = self._left and self.processes.world > 1
                signal.signal(number, signal.SIG_IGN if stopped else handler)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _flush_logs(trainer)
        if self._stops_after_epoch:
            # Not at its end: Lightning has logged its values only now.
            self._leave(f"after epoch {trainer.current_epoch}")
        self._epoch_began = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Summed where it is: no waiting for a GPU.
        self.loss_sum, self.batches = outputs["loss"].detach() + self.loss_sum, self.batches + 1
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._epoch_ended = time.monotonic()
            return  # the end of the epoch is at hand, and saves
        due = time.monotonic() - self._saved_at > 60 * self.recipe.training.checkpoint_minutes
        stopping, due = self.processes.any(self.stopping, due)
        if stopping:
            self._save(trainer)
            self._leave(f"in epoch {trainer.current_epoch + 1}, after step {trainer.global_step}")
        if due:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task = _task(trainer)
        seconds = self._epoch_ended - self._epoch_began
        evaluated = time.monotonic()
        self.display.times.add("training", seconds)
        self.display.times.add("validation", evaluated - self._epoch_ended)
        row: dict[str, float] = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step}
        row["loss"] = float(self.loss_sum) / self.batches
        values = self._values()
        row |= values.get("epoch", {})
        if self.average is not None and values:
            average = values.get("average") or dict.fromkeys(values["epoch"], math.nan)  # where it has not begun
            row |= {f"average_{name}": value for name, value in average.items()}
        measured = {name: value for measure in _measures(trainer) for name, value in measure.latest.items()}
        row |= measured
        row["seconds"] = round(seconds, 3)
        self.loss_sum, self.batches = 0.0, 0
        self.rows.append(row)
        metric = self.recipe.evaluation.metric
        value = row.get(metric)
        if value is not None and task.plateau is not None:
            task.plateau.step(value)  # now, as Lightning would do so after the checkpoint, which would then lack it
        kept = max(values, key=lambda name: values[name][metric], default=self._kept_unevaluated)
        better = not values or self.best is None or values[kept][metric] > self.best[metric]
        if better:
            self.best = {"epoch": row["epoch"], "step": row["step"], **values.get(kept, {}), **measured}
            self.kept = kept
        before = len(self.ended)
        self._end_phases(trainer)
        self._save(trainer)
        if better:
            self._write_best(task)
        if self.processes.is_first:
            self._write_history()
        self.display.times.add("saving", time.monotonic() - evaluated)
        self.display.report(self._line(row, seconds, trainer))
        if len(self.ended) > before:
            self.display.report(self._why_ended())
        (self._stops_after_epoch,) = self.processes.any(self.stopping)
        if self.display.on_epoch is not None and not self._stops_after_epoch:
            self.display.on_epoch(row)

    def _values(self) -> dict[str, Mapping[str, float]]:
        """The metrics of what stands for selection after an epoch; empty where nothing was evaluated."""
        parts = {"epoch": self.evaluator, "average": self.average}
        return {name: part.latest for name, part in parts.items() if part is not None and part.latest is not None}

    @property
    def _kept_unevaluated(self) -> str:
        return "average" if self.average is not None and self.average.has_begun else "epoch"

    def _end_phases(self, trainer: Trainer) -> None:
        """Begin the second phase, or end the training, where the present phase has come to its plateau."""
        until = self.recipe.training.until_plateau
        if until is None or not self.rows:
            return
        values = [row[self.recipe.evaluation.metric] for row in self.rows]
        ended = [asdict(phase) for phase in ended_phases(values, self.recipe.lengths, until)]
        # The first process decides for all: the last digits may differ between machines.
        self.ended = [EndedPhase(**phase) for phase in json.loads(self.processes.broadcast(json.dumps(ended)))]
        lengths = [phase.epochs for phase in self.ended]
        trainer.fit_loop.max_epochs = sum(lengths) + sum(self.recipe.lengths[len(lengths) :])
        task = _task(trainer)
        if lengths and task.second is not None:
            task.second_begins = lengths[0]

    def _why_ended(self) -> str:
        until, metric, last = self.recipe.training.until_plateau, self.recipe.evaluation.metric, self.ended[-1]
        assert until is not None
        name = ("The first phase", "The second phase")[len(self.ended) - 1] if self.recipe.second_phase else "Training"
        if last.reason == "epochs":
            return f"{name} ended after all of its {last.epochs} epochs, before a plateau."
        by = f" by more than {until.min_improvement:g}" if until.min_improvement else ""
        return (
            f"{name} ended after {last.epochs} epochs, at a plateau: validation {metric} has not grown{by} in "
            f"{'1 epoch' if until.patience == 1 else f'{until.patience} epochs'}."
        )

    def _write_history(self) -> None:
        rows = self.rows
        if self.recipe.training.until_plateau is not None and self.recipe.second_phase is not None:
            first = self.ended[0].epochs if self.ended else self.recipe.lengths[0]
            rows = [{**row, "phase": 1 if row["epoch"] <= first else 2} for row in rows]
        self.run.write_history(rows)

    def _line(self, row: dict[str, float], seconds: float, trainer: Trainer) -> str:
        samples = trainer.num_training_batches * self.recipe.batches.size
        name = self.recipe.evaluation.metric
        line = f"epoch {row['epoch']:.0f}/{trainer.max_epochs}  loss {row['loss']:.4f}"
        if name in row and self.best is not None:
            at = f"epoch {self.best['epoch']:.0f}" if self.best["epoch"] else "the start"
            averaged = f", averaged {percent(row[f'average_{name}'])}" if self.average is not None else ""
            line += f"  validation {name} {percent(row[name])}{averaged}  (best {percent(self.best[name])}, {at})"
        return f"{line}  {samples / seconds:,.0f} {self.recipe.kind}/s"

    def _write_best(self, task: EmbeddingTask) -> None:
        if not self.processes.is_first:
            return
        save_model(self.run.path, self._kept_network(task.model), self.recipe.preprocessing)
        if self.kept == "start":  # the proxies are of another size, and untrained
            self.run.loss.unlink(missing_ok=True)
            return
        self.write_loss(task)

    def write_loss(self, task: EmbeddingTask) -> None:
        """Write what the loss has learnt; sharded proxies as they are in the last checkpoint."""
        state = task.loss.state_dict()
        if task.shards is not None:
            state["proxies"] = task.shards.whole()
        with write_atomically(self.run.loss) as temporary:
            # As bytes first: safetensors hides the reason why a write to a file fails.
            temporary.write_bytes(safetensors.torch.save(state))

    def _kept_network(self, model: EmbeddingModel) -> EmbeddingModel:
        if self.kept == "average":
            assert self.average is not None
            return self.average.network
        return without_head(model) if self.kept == "start" else model

    def _save(self, trainer: Trainer) -> None:
        task = _task(trainer)
        task.check_weights()
        self.step = trainer.global_step
        _flush_logs(trainer)
        trainer.save_checkpoint(self.run.checkpoint)
        if task.shards is not None and self.processes.is_first:
            task.shards.drop_others()
        self._saved_at = time.monotonic()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process or self._left:
            return  # one that loads images, or a signal too late
        if self.stopping:
            # Not KeyboardInterrupt, which Lightning takes for its own and ends the process without a word.
            raise Interrupted(
                f"Stopped at once: continue from the last checkpoint with proxemic train --resume {self.run.path}"
            )
        self.stopping = True
        if not self.processes.is_first or (number == signal.SIGTERM and self.processes.world > 1):
            return  # torchrun also sends SIGTERM when another process is lost: nothing will be saved then
        # Not print: a signal may come in the middle of one, and it cannot be entered twice.
        os.write(1, b"\nStopping: saving first; once more stops at once.\n")

    def _leave(self, where: str) -> None:
        self._left = True
        raise Interrupted(
            f"Stopped {where}, everything is saved: continue with proxemic train --resume {self.run.path}"
        )


def _task(trainer: Trainer) -> EmbeddingTask:
    task = trainer.lightning_module
    assert isinstance(task, EmbeddingTask)
    return task


def _measures(trainer: Trainer) -> list[EpochMeasure]:
    return [callback for callback in trainer.callbacks if isinstance(callback, EpochMeasure)]  # type: ignore[attr-defined]


def _flush_logs(trainer: Trainer) -> None:
    # What a run that is resumed from the checkpoint will not log again.
    for logger in trainer.loggers:
        logger.save()

"""The training loop of a run, to be read from top to bottom.

`Training.fit` trains epochs of batches. The next phase may begin before an epoch. After each epoch come the evaluation
of held-out classes, a row of the history, model selection, and the checkpoint. All of this is a function of the recipe,
its seed, the epoch and the step, so a run that is killed and resumed ends with the same bytes.
"""

import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, Int
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from proxemic.data import ImageSet
from proxemic.data.samplers import derive_seed
from proxemic.distributed.gather import share_first
from proxemic.errors import TrainingDiverged, UserError
from proxemic.files import write_json, write_text
from proxemic.losses import ProxyLoss
from proxemic.metrics import RetrievalMetrics
from proxemic.models import save_model
from proxemic.optim.schedules import PolynomialDecay
from proxemic.runs.embed import embed_images
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.runs.starts import BothStarts, better_start, evaluate_starts
from proxemic.training.advice import epoch_line, phase_line, start_line
from proxemic.training.callbacks.callback import Callback
from proxemic.training.callbacks.measures import EpochMeasure
from proxemic.training.callbacks.proxies import proxy_callbacks
from proxemic.training.components import Components
from proxemic.training.gradient_cache import InMicroBatches
from proxemic.training.hardware import compiles, gpu_of, make_scaler
from proxemic.training.parts.average import WeightAverage
from proxemic.training.parts.bar import TrainingBar
from proxemic.training.parts.loggers import CSVLog, Logger, RunLog, TensorBoardLog
from proxemic.training.parts.stopping import Signals
from proxemic.training.parts.storage import read_checkpoint, write_checkpoint
from proxemic.training.phases import EndedPhase, continue_optimizer, ended_phases, share_parameters
from proxemic.training.record import Session, write_chosen
from proxemic.training.state import TrainingState

_LOGGED = 50  # steps between two logged losses
_HALF = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class Training(TrainingState):
    """Trains a run, from its checkpoint if there is one.

    ``batch`` counts the steps of the present epoch, and ``step`` those of all epochs.
    """

    def __init__(self, session: Session, components: Components, held_out: ImageSet | None) -> None:
        recipe = session.recipe
        super().__init__(recipe, session.run, session.processes, components.model, components.phases, components.data)
        self.session, self.record, self.shards, self.held_out = session, session.record, components.shards, held_out
        self.batch, self.batches, self.loader = 0, len(self.data.batches), self.data.loader()
        self.loss_sum: Tensor | float = 0.0
        self.trained = [parameter for parameter in self.model.backbone.parameters() if parameter.requires_grad]
        average = recipe.training.average
        self.average = None if average is None else WeightAverage(average, self.model)
        own = recipe.training.callbacks or []
        self.callbacks: list[Callback] = [*proxy_callbacks(recipe, self.data.images, self.loss), *own]
        self.measures = [callback for callback in own if isinstance(callback, EpochMeasure)]
        self.loggers: Sequence[Logger] = ()
        self.bar = TrainingBar(recipe, self.batches, shown=session.bars)
        self.signals = Signals(session.run, session.processes)
        self.saved_at = time.monotonic()

    def fit(self) -> None:
        """Train all epochs, and record the history and the selected epoch."""
        try:
            with self.signals.heeded(), warnings.catch_warnings():
                # In half precision, a step whose gradients overflow is skipped.
                warnings.filterwarnings("ignore", ".*Detected call of `lr_scheduler.step")
                self.begin()
                while self.epoch < self.epochs:
                    self.begin_epoch()
                    for images, labels in self.loader:
                        self.train_batch(images, labels)
                        self.save_if_due()
                    self.end_epoch()
                for callback in self.callbacks:
                    callback.on_train_end(self)
                if self.signals.stopping:
                    self.signals.leave("after the last epoch")
        except TrainingDiverged as error:
            kept = "there is no checkpoint yet"
            if self.run.checkpoint.exists():
                kept = f"the last good checkpoint, of step {self.record.step}, is kept in {self.run.path}"
            if self.processes.is_first:
                write_text(self.run.diverged, f"{error}\n")
            raise TrainingDiverged(f"{error}; {kept}.") from None
        finally:
            self.bar.close()
            for log in self.run_logs():
                log.close()
            for module in self.modules():  # what comes next may need the memory of a GPU
                module.cpu()

    def begin(self) -> None:
        """Bring everything to the state of the checkpoint, if there is one, or to that before the first step."""
        self.distribute()
        checkpoint = read_checkpoint(self.run.checkpoint, whole=True) if self.run.checkpoint.exists() else None
        if checkpoint is not None:
            self.restore(checkpoint)
        self.move_to_device()
        self.build_optimizer()
        if checkpoint is not None:
            self.restore_optimizer(checkpoint)
        if self.processes.is_first:
            self.begin_files()
        for callback in self.callbacks:
            callback.on_train_start(self)
        before = {name: value for measure in self.measures for name, value in measure.before.items()}
        if before and self.processes.is_first:
            write_json(self.run.measured_before, before)
        if self.step == 0:
            self.keep_start()

    def distribute(self) -> None:
        """Choose the GPU of this process, and let losses and batch norm work on the batch of all processes."""
        if self.processes.world == 1:
            return
        if self.device.type == "cuda":
            self.device = torch.device("cuda", gpu_of(self.processes))
            torch.cuda.set_device(self.device)
            if self.recipe.training.sync_batch_norm:
                convert_sync_batchnorm(self.model)
        for phase in self.phases:
            if isinstance(phase.loss, ProxyLoss):
                phase.loss.distribute(sharded=self.shards is not None, even_batches=self.data.even)
            else:
                phase.loss.distribute(even_batches=self.data.even)

    def move_to_device(self) -> None:
        """Move model and losses, and prepare what a step needs there: precision, exchange of gradients, compilation."""
        training, several = self.recipe.training, self.processes.world > 1
        for module in self.modules():
            module.to(self.device)
        for phase in self.phases[self.phase + 1 :]:  # only now, as moving a module to a GPU replaces its buffers
            share_parameters(phase.loss, self.loss)
        self.network: nn.Module = InMicroBatches(self.model, self.recipe.batches.micro_batches)
        if several and any(parameter.requires_grad for parameter in self.model.parameters()):
            # Only the network: the loss has the whole batch, so its gradients are complete on each process.
            self.network = DistributedDataParallel(
                self.network,
                device_ids=None if self.device.type == "cpu" else [self.device],
                find_unused_parameters=training.warmup_epochs > 0,  # the backbone then has no gradients
            )
        half = _HALF.get(training.precision)
        self.autocast: AbstractContextManager[Any] = nullcontext()
        if half is not None:
            self.autocast = torch.autocast(self.device.type, half, cache_enabled=False)
        self.scaler = make_scaler(self.device, training.precision, sharded=several and self.shards is not None)
        if compiles(self.recipe, [phase.loss for phase in self.phases], self.batches, self.processes):
            for phase in self.phases:
                phase.loss.compile()

    def begin_files(self) -> None:
        """Begin the logs, and write the files that a run lacks if it was killed between the checkpoint and these."""
        loggers = self.recipe.training.loggers
        self.loggers = (TensorBoardLog(), CSVLog()) if loggers is None else loggers
        for log in self.run_logs():
            log.begin(self.run.path / "logs", self.step)
        self.run.diverged.unlink(missing_ok=True)
        if self.record.rows:
            self.write_chosen()
            self.write_history()

    def keep_start(self) -> None:
        """Keep the network before training, and evaluate it with and without its new head, for model selection."""
        recipe, evaluation, record = self.recipe, self.recipe.evaluation, self.record
        if self.processes.is_first and (evaluation.start or evaluation.untrained):
            save_model(self.run.start, self.model, recipe.preprocessing)
        if self.held_out is None or not evaluation.start:
            return
        with self.session.times.of("validation"):
            network = BothStarts(self.model)
            embeddings = self.embed(network, self.held_out).split([*network.widths.values()], dim=1)
            parts = dict(zip(network.widths, embeddings, strict=True))
            record.starts = evaluate_starts(parts, self.held_out, evaluation)
        # The first process decides for all: the last digits may differ between machines.
        if better := self.processes.broadcast(better_start(record.starts, evaluation.metric)):
            if better == "untrained" and self.shards is not None:
                self.shards.save_start(self.proxies)
            record.best, record.kept = {"epoch": 0, "step": 0, **record.starts[better]}, better
            if self.processes.is_first:
                write_chosen(self.session, self.model, self.loss, self.shards)
        self.session.report(start_line(recipe, record.starts))

    def begin_epoch(self) -> None:
        """Begin the next phase if this is its first epoch, and go to the first batch that is not yet trained."""
        self.epoch_began = self.epoch_ended = time.monotonic()
        if self.phase + 1 < len(self.phases) and self.epoch >= sum(self.lengths[: self.phase + 1]):
            self.begin_phase()
        for parameter in self.trained:  # in the warm-up, only head and proxies are trained
            parameter.requires_grad_(self.epoch >= self.recipe.training.warmup_epochs)
        self.data.batches.set_epoch(self.epoch)
        self.data.batches.skip(self.batch)
        last = self.record.rows[-1] if self.record.rows else {}
        metric = last.get(self.recipe.evaluation.metric)
        self.bar.begin_epoch(self.epoch, self.epochs, done=self.batch, metric=metric)
        if self.batch == 0:
            for callback in self.callbacks:
                callback.on_epoch_start(self)

    def begin_phase(self) -> None:
        """Continue the weights with the loss and the optimisation of the next phase; see `continue_optimizer`."""
        loss, optimizer = self.loss, self.optimizer
        self.enter_phase(self.phase + 1)
        share_parameters(self.loss, loss)
        for parameter in self.trained:  # the optimiser also needs those that are trained only after the warm-up
            parameter.requires_grad_(True)
        self.build_optimizer()
        continue_optimizer(self.optimizer, optimizer)

    def build_optimizer(self) -> None:
        self.optimizer, self.schedule = self.optim.build(self.model, self.loss, sharded=self.shards is not None)
        self.plan_decay()

    def plan_decay(self) -> None:
        """Tell a polynomial decay its number of steps, which changes if a phase ends at a plateau."""
        if isinstance(self.schedule, PolynomialDecay):
            self.schedule.plan(self.batches * (self.epochs - sum(self.lengths[: self.phase])))

    def train_batch(self, images: Tensor, labels: Int[Tensor, " batch"]) -> None:
        """Take one step."""
        images, labels = images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        self.seed_step(*([self.rank] if self.rank else []))  # of dropout, for example
        with self.autocast:
            embeddings = self.network(images)
            if self.processes.world > 1 and self.shards is None:
                self.seed_step()  # each process computes the whole loss, and must draw the same random numbers in it
            loss = self.loss(embeddings, labels)
        # On a GPU, a check in each step would wait for it; there the weights are checked once per epoch.
        if not loss.is_cuda and not loss.isfinite():
            self.fail(f"The loss became {loss.item()} at step {self.step} (epoch {self.epoch})")
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for callback in self.callbacks:
            callback.on_backward_end(self)
        if self.optim.clips:
            self.scaler.unscale_(self.optimizer)
            local = [] if self.shards is None else [self.proxies]
            self.optim.clip(self.optimizer, self.model, local, self.processes.group)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if isinstance(self.schedule, PolynomialDecay):
            self.schedule.step()
        self.step, self.batch = self.step + 1, self.batch + 1
        loss = loss.detach()
        self.loss_sum = loss + self.loss_sum  # on its device, without waiting for a GPU
        if self.average is not None:
            self.average.after_step(self.model, self.epoch)
        for callback in self.callbacks:
            callback.on_step_end(self, loss)
        self.epoch_ended = time.monotonic()
        self.bar.update(self.batch, loss)
        if self.loggers and self.step % _LOGGED == 0:
            self.log({"loss": float(loss), **self.learning_rates()})

    def seed_step(self, *parts: int) -> None:
        """Set the generator of the device for this step, so that what is drawn in it is the same in a resumed run."""
        # Without a GPU, `torch.manual_seed` records a stack trace for each kind of GPU, which is slow.
        generator = torch.default_generator if self.device.type == "cpu" else torch
        generator.manual_seed(derive_seed(self.recipe.seed, self.step, *parts))

    def save_if_due(self) -> None:
        """Within an epoch, save if a process was asked to stop or the last checkpoint is too old."""
        if self.batch == self.batches:
            return  # the epoch ends and saves
        is_old = time.monotonic() - self.saved_at > 60 * self.recipe.training.checkpoint_minutes
        stopping, is_old = self.processes.any(self.signals.stopping, is_old)
        if stopping or is_old:
            self.save()
        if stopping:
            self.signals.leave(f"in epoch {self.epoch + 1}, after step {self.step}")

    def end_epoch(self) -> None:
        """Evaluate, add a row to the history, select the epoch if it is the best, and save."""
        self.bar.end_epoch()
        if self.processes.group is not None:
            # On CPUs, batch norm has different statistics on each process; those of the first are evaluated.
            share_first(self.model.buffers(), self.processes.group)
        values = self.evaluate_epoch()
        for callback in self.callbacks:
            callback.on_epoch_end(self)
        measured = {name: value for measure in self.measures for name, value in measure.latest.items()}
        shown = {f"validation/{name}": value for name, value in values.get("epoch", {}).items()}
        shown |= {f"validation/average_{name}": value for name, value in values.get("average", {}).items()}
        self.log({**shown, **measured, **self.learning_rates()})
        row = self.add_row(values, measured)
        if isinstance(self.schedule, ReduceLROnPlateau):
            self.schedule.step(row[self.recipe.evaluation.metric])
        elif self.schedule is not None and not isinstance(self.schedule, PolynomialDecay):
            self.schedule.step()
        self.choose(row, values, measured)
        self.end_phases()
        self.epoch, self.batch, self.loss_sum = self.epoch + 1, 0, 0.0
        with self.session.times.of("saving"):
            self.save()
            if self.processes.is_first:
                self.write_chosen()
                self.write_history()
        self.report_epoch(row)

    def evaluate_epoch(self) -> dict[str, RetrievalMetrics]:
        """Return the metrics of the network (``epoch``) and of its ``average``, as far as there are any."""
        values: dict[str, RetrievalMetrics] = {}
        if self.held_out is not None:
            values["epoch"] = self.evaluate(self.model, self.held_out)
        if self.average is not None:
            self.average.after_epoch(self.model, self.epoch)
            if self.held_out is not None and self.average.has_begun:
                values["average"] = self.evaluate(self.average.network, self.held_out)
        return values

    def evaluate(self, network: nn.Module, held_out: ImageSet) -> RetrievalMetrics:
        embeddings = self.embed(network, held_out)
        self.check_embeddings(embeddings, "held-out")
        return evaluate_embeddings(embeddings, held_out, self.recipe.evaluation, or_nan=True)

    def embed(self, network: nn.Module, held_out: ImageSet) -> Float[Tensor, "images dim"]:
        """Embed the held-out images; the processes share the work, and each gets all embeddings."""
        evaluation = self.recipe.evaluation
        return embed_images(
            network,
            held_out,
            self.recipe.images,
            batch_size=evaluation.batch_size,
            workers=self.recipe.batches.workers,
            description="validation",
            shared=True,
            precision=evaluation.precision,
        )

    def add_row(self, values: Mapping[str, RetrievalMetrics], measured: Mapping[str, float]) -> dict[str, float]:
        """Add the epoch to the history, and its seconds to those of the run; return the row."""
        seconds, times = self.epoch_ended - self.epoch_began, self.session.times
        times.add("training", seconds)
        times.add("validation", time.monotonic() - self.epoch_ended)
        row: dict[str, float] = {"epoch": self.epoch + 1, "step": self.step}
        row["loss"] = float(self.loss_sum) / self.batch
        row |= values.get("epoch", {})
        if self.average is not None and values:
            not_begun = dict.fromkeys(values["epoch"], math.nan)
            row |= {f"average_{name}": value for name, value in values.get("average", not_begun).items()}
        row |= {**measured, "seconds": round(seconds, 3)}
        self.record.rows.append(row)
        return row

    def choose(
        self, row: Mapping[str, float], values: Mapping[str, RetrievalMetrics], measured: Mapping[str, float]
    ) -> None:
        """Keep the weights of the epoch, or their average, if they are the best so far or nothing is evaluated."""
        metric, best = self.recipe.evaluation.metric, self.record.best
        has_begun = self.average is not None and self.average.has_begun
        kept = max(values, key=lambda name: values[name][metric], default="average" if has_begun else "epoch")
        if not values or best is None or values[kept][metric] > best[metric]:
            self.record.best = {"epoch": row["epoch"], "step": row["step"], **values.get(kept, {}), **measured}
            self.record.kept = kept

    def end_phases(self) -> None:
        """End the phase, or the training, once the metric has reached a plateau."""
        until, rows = self.recipe.training.until_plateau, self.record.rows
        if until is None or not rows:
            return
        values = [row[self.recipe.evaluation.metric] for row in rows]
        ended = [asdict(phase) for phase in ended_phases(values, self.recipe.lengths, until)]
        # The first process decides for all: the last digits may differ between machines.
        self.record.ended = [EndedPhase(**phase) for phase in json.loads(self.processes.broadcast(json.dumps(ended)))]

    def report_epoch(self, row: dict[str, float]) -> None:
        """Report the epoch, and stop if a process was asked to."""
        recipe, record, session = self.recipe, self.record, self.session
        samples = self.batches * recipe.batches.size
        rate, seconds = samples / max(row["seconds"], 1e-3), time.monotonic() - self.epoch_began
        session.report(epoch_line(recipe, record, row, self.epochs, rate=rate, seconds=seconds))
        if sum(phase.epochs for phase in record.ended) == self.epoch:
            session.report(phase_line(recipe, record.ended))
        (stopping,) = self.processes.any(self.signals.stopping)
        if stopping:
            self.signals.leave("after the last epoch" if self.epoch == self.epochs else f"after epoch {self.epoch}")
        if session.on_epoch is not None:
            try:
                session.on_epoch(row)
            except Exception as error:
                session.raised = error
                raise

    def save(self) -> None:
        """Write the checkpoint; every process must call this, as each may hold a shard of the proxies."""
        self.check_weights()
        self.record.step = self.step
        checkpoint: dict[str, Any] = {
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "phase": {"number": self.phase, "began": sum(self.lengths[: self.phase])},
            "loss_sum": float(self.loss_sum),
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "callbacks": {name: callback.state_dict() for name, callback in self.named_callbacks()},
            "record": self.record.state_dict(),
        }
        if self.shards is not None:
            self.shards.save(checkpoint, self.optimizer, self.proxies, self.step)
        if self.processes.is_first:
            for log in self.run_logs():
                log.save()  # a run that is resumed from the checkpoint does not log these values again
            write_checkpoint(checkpoint, self.run.checkpoint)
            if self.shards is not None:
                self.shards.drop_others()
        self.saved_at = time.monotonic()

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Load everything from a checkpoint except the optimiser, which is built once the modules are moved."""
        self.epoch, self.batch, self.step = (checkpoint[name] for name in ("epoch", "batch", "step"))
        self.loss_sum = checkpoint["loss_sum"]
        vars(self.record).update(checkpoint["record"])
        self.end_phases()
        number, began = checkpoint["phase"]["number"], checkpoint["phase"]["began"]
        planned = sum(self.lengths[:number]) if number < len(self.phases) else None
        if began != planned:
            raise UserError(
                f"The second phase of this run began after {began} epochs, but by its recipe it does so after "
                f"{'none' if planned is None else planned}: put training.epochs and second_phase back to what they "
                "were, or begin anew with another --out."
            )
        if number > 0:
            share_parameters(self.phases[number].loss, self.loss)
            self.enter_phase(number)
        if self.shards is not None:
            self.shards.load(checkpoint, self.proxies)
        self.model.load_state_dict(checkpoint["model"])
        self.loss.load_state_dict(checkpoint["loss"])
        if self.average is not None:
            self.average.load_state_dict(checkpoint["average"])
        for name, callback in self.named_callbacks():
            if state := checkpoint["callbacks"].get(name):
                callback.load_state_dict(state)

    def restore_optimizer(self, checkpoint: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(checkpoint["schedule"])
        self.scaler.load_state_dict(checkpoint["scaler"])
        self.plan_decay()

    def write_chosen(self) -> None:
        """Write the network of the last checkpoint if its epoch is the selected one."""
        if self.record.best is not None and self.record.best["step"] == self.record.step:
            is_average = self.average is not None and self.record.kept == "average"
            model = self.average.network if self.average is not None and is_average else self.model
            write_chosen(self.session, model, self.loss, self.shards)

    def write_history(self) -> None:
        rows = self.record.rows
        if self.recipe.training.until_plateau is not None and self.recipe.second_phase is not None:
            rows = [{**row, "phase": 1 if row["epoch"] <= self.lengths[0] else 2} for row in rows]
        self.run.write_history(rows)

    @property
    def lengths(self) -> list[int]:
        """The number of epochs of each phase; of those that have not ended, the largest possible."""
        ended = [phase.epochs for phase in self.record.ended]
        return [*ended, *self.recipe.lengths[len(ended) :]]

    @property
    def epochs(self) -> int:
        return sum(self.lengths)

    def modules(self) -> Iterator[nn.Module]:
        """Yield all modules that are on the device."""
        yield self.model
        yield from (phase.loss for phase in self.phases)
        if self.average is not None:
            yield self.average.network

    def named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """Yield the callbacks with their names in the checkpoint; there may be several of one class."""
        for number, callback in enumerate(self.callbacks):
            yield f"{number} {type(callback).__qualname__}", callback

    def run_logs(self) -> list[RunLog]:
        return [logger for logger in self.loggers if isinstance(logger, RunLog)]

    def learning_rates(self) -> dict[str, float]:
        groups = enumerate(self.optimizer.param_groups)
        return {f"lr/{group.get('name', number)}": float(group["lr"]) for number, group in groups}

    def log(self, metrics: Mapping[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics({**metrics, "epoch": self.epoch + 1}, self.step)

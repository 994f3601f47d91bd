"""From a recipe to a finished run directory."""

import logging
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from tqdm import tqdm

from proxemic.data import ImageSet, Splits
from proxemic.errors import Interrupted, UserError
from proxemic.files import check_folder, read_json, remove_stale_temporaries, write_json, write_text
from proxemic.locks import exclusive_lock
from proxemic.losses import HISTLoss, PairwiseLoss, ProxyLoss, class_balanced_weights
from proxemic.losses.own import Loss, MakesLoss, loss_name, make_loss
from proxemic.models import EmbeddingModel, build_model, load_model
from proxemic.training.checkpoint_io import AtomicCheckpointIO, read_checkpoint
from proxemic.training.checkpointing import RunCheckpointer
from proxemic.training.data_module import EpochOrder, TrainingData
from proxemic.training.embed import embed_images, evaluate_embeddings, pick_device
from proxemic.training.epoch_metrics import EpochMeasure, Snapshots
from proxemic.training.extending import check_extension, extend, with_epochs
from proxemic.training.failures import explained, explanation, to_be_continued
from proxemic.training.logs import run_loggers
from proxemic.training.module import EmbeddingTask, TrainingDiverged
from proxemic.training.multiprocess.processes import Processes, ProcessesOfLightning, keep_sigterm
from proxemic.training.multiprocess.sharded_checkpoint import ProxyShards
from proxemic.training.multiprocess.sync_batch_norm import JoinedBatchNorm
from proxemic.training.own_metrics import check_own_metrics
from proxemic.training.phases import Phase
from proxemic.training.plots import draw_curves, draw_gallery
from proxemic.training.progress import TrainingBar
from proxemic.training.recipe import Recipe
from proxemic.training.retrieval_callback import RetrievalCallback
from proxemic.training.run_directory import RunDirectory, fingerprint
from proxemic.training.threads import cpu_threads
from proxemic.training.times import Times
from proxemic.training.warm_start import start_from, trained_before

__all__ = ["train"]

_SEEN_BY = 120.0  # seconds in which a file of one machine is seen by the others in a folder they share; NFS may take 60


@dataclass(frozen=True)
class _Show:
    """Who is told what on the way."""

    report: Callable[[str], object]
    bars: bool
    on_epoch: Callable[[Mapping[str, float]], object] | None
    times: Times


@dataclass(frozen=True)
class _Parts:
    """What a recipe builds, from its seed alone."""

    splits: Splits
    task: EmbeddingTask
    data: TrainingData
    schedule: LRScheduler | None


def train(
    recipe: Recipe,
    recipe_yaml: str,
    out: Path,
    *,
    resume: bool = False,
    epochs: int | None = None,
    report: Callable[[str], object] = tqdm.write,
    progress: bool = True,
    test: bool = True,
    on_epoch: Callable[[Mapping[str, float]], object] | None = None,
    processes: Processes = Processes(),
    began: float | None = None,
) -> dict[str, Any]:
    """Train, choose the epoch on held-out classes, judge once on the test classes, write everything to ``out``.

    Args:
        recipe: What to do.
        recipe_yaml: The same as text, all values spelt out; kept in the run directory.
        out: The run directory; new, or that of the run to resume.
        resume: Continue the run in ``out`` from its last checkpoint.
        epochs: Extend the run that is resumed, finished or not, to this many epochs, more than its recipe has: it ends
            as a run of as many would have ended.
        report: Is given lines for the user; by default they are printed above the progress bar.
        progress: Show progress bars, on a terminal.
        test: Judge on the test classes; without, they are not looked at, as a search for hyper-parameters must not.
        on_epoch: Is given each new row of the history; what it raises ends the training, which can be resumed.
        processes: Those that train together, each of which calls this; see `join_processes`.
        began: `time.monotonic` when the command began, for the record of where the time went; None is now.

    Returns:
        The content of ``metrics.json``; without ``test`` where the data give no test classes. Of several processes only
        the first judges and has it; the others have nothing.

    Raises:
        UserError: For what the user can mend; `Interrupted` after Ctrl-C, `TrainingDiverged` if the loss is not finite.
        ValueError: If a value of the recipe is not allowed.
    """
    times = Times(began)
    check_folder(out)
    run = RunDirectory(out)
    if not processes.is_first:
        report = _unheard
    if processes.is_first:
        run.check_run(test) if resume else run.check_new()
    before = recipe.training.epochs
    if epochs is not None:
        recipe, recipe_yaml = with_epochs(recipe, recipe_yaml, epochs)
    if resume:
        _check_shared(run, processes)
        if run.metrics.exists() and epochs is None:
            report(f"{out} is finished; these are its results.")
            return read_json(run.metrics)
    _check_accelerator(recipe)
    recipe = recipe.from_its_first_phase()
    if resume:
        recipe = replace(recipe, data=run.locate(recipe.data))
    with explained(recipe, run):
        parts = _build(recipe, run, processes, times)
    held_out, selected_on = _held_out(recipe, parts.splits)
    _introduce(parts.splits, selected_on, report)
    if resume:
        run.check_images(fingerprint(parts.splits))
    else:
        _check_shared(run, processes)
    if epochs is not None:
        check_extension(run, before, epochs, parts.schedule)
    if recipe.training.start_from is not None and not run.checkpoint.exists():
        report(start_from(RunDirectory(recipe.training.start_from), parts.task.model, parts.task.loss, parts.splits))
    show = _Show(report, progress and os.isatty(2) and processes.is_first, on_epoch, times)
    with ExitStack() as held:
        held.enter_context(cpu_threads(recipe.training.threads))
        if processes.is_first:
            try:
                held.enter_context(exclusive_lock(run.checkpoint.parent))
            except OSError as error:
                reason = str(error.strerror or error).lower()
                raise UserError(f"{out} cannot be written to: {reason}; check the folder.") from error
            remove_stale_temporaries(run.path)
            if not resume:
                if run.recipe.exists():  # another run has begun there in the meantime
                    run.check_new()
                earlier = trained_before(recipe)
                run.create(
                    recipe_yaml, recipe.data, parts.splits, earlier=earlier, test=test, processes=processes.world
                )
            elif epochs is not None:
                extend(run, recipe_yaml)
        held.enter_context(to_be_continued(run))
        held.enter_context(explained(recipe, run))
        checkpointer = _fit(recipe, parts, held_out, run, show, processes)
        if not processes.is_first:
            return {}
        try:
            return _finish(recipe, parts.splits, checkpointer, selected_on, run, show, test)
        except KeyboardInterrupt:
            raise Interrupted(
                f"Stopped after training, which is saved: judge and finish it with proxemic train --resume {out}"
            ) from None


def _check_shared(run: RunDirectory, processes: Processes) -> None:
    """All go on from the same place, or none."""
    if processes.world == 1:
        return
    # A copy of the run on each machine has all files, but not this one.
    token = run.path / f".together.{uuid.uuid4().hex}.tmp"
    if processes.is_first:
        write_text(token, "")
    try:
        files = (run.path / processes.broadcast(token.name), run.recipe, run.checkpoint, run.metrics)
        deadline = time.monotonic() + _SEEN_BY
        there = str([path.exists() for path in files])
        while processes.any(there != processes.broadcast(there))[0]:
            if processes.any(time.monotonic() > deadline)[0]:
                raise UserError(
                    f"{run.path} is not the same folder for all processes: give --out or --resume one that all "
                    "machines share."
                )
            time.sleep(0.5)  # a file that one machine has made may come to others with a delay
            there = str([path.exists() for path in files])
    finally:
        token.unlink(missing_ok=True)


def _check_accelerator(recipe: Recipe) -> None:
    wanted = recipe.training.accelerator
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(wanted, True):
        raise UserError(f"training.accelerator is {wanted}, but this machine has none: take cpu, or auto.")
    if recipe.training.precision == "16-mixed" and pick_device(wanted).type != "cuda":
        raise UserError("training.precision is 16-mixed, which needs a CUDA GPU: take bf16-mixed, or 32-true.")


def _unheard(line: str) -> None:
    """What the first process reports for all."""


def _build(recipe: Recipe, run: RunDirectory, processes: Processes, times: Times) -> _Parts:
    with processes.main_process_first("images"), times.of("data"):
        splits = recipe.load()
    with times.of("network"):
        model, loss = _networks(recipe, splits)
        _check_takes_images(recipe, model, run)
    # What these refuse is said before anything is written.
    schedule = recipe.optim.build(model, loss, sharded=recipe.proxies == "sharded")[1]
    _check_schedule(recipe, schedule)
    check_own_metrics(recipe.evaluation)
    if isinstance(loss, PairwiseLoss):
        loss.check_batch_size(recipe.batches.size)
    second = _second_phase(recipe, model, splits)
    for measure in recipe.training.callbacks or []:
        if isinstance(measure, EpochMeasure):
            for each in [loss, *([second.loss] if second else [])]:
                measure.check(each)
    sharded = recipe.proxies == "sharded"
    if sharded:
        _check_sharded(recipe, loss, processes)
    data = TrainingData(splits.train, recipe, rank=processes.rank, world=processes.world)
    beta = recipe.training.class_balance
    task = EmbeddingTask(
        model,
        loss,
        recipe.optim,
        recipe.seed,
        warmup_epochs=recipe.training.warmup_epochs,
        second=second,
        until_plateau=recipe.training.until_plateau is not None,
        parts=recipe.batches.parts,
        processes=processes,
        shards=ProxyShards(run.checkpoint.parent, processes, splits.train.num_classes) if sharded else None,
        even_batches=data.even,
        class_weights=None if beta is None else class_balanced_weights(_counts(splits), beta),
    )
    return _Parts(splits, task, data, schedule)


def _check_sharded(recipe: Recipe, loss: Loss, processes: Processes) -> None:
    if not isinstance(loss, ProxyLoss) or isinstance(loss, HISTLoss):
        raise UserError(
            f"proxies is sharded, but {loss_name(loss)} "
            + ("needs those of the whole batch" if isinstance(loss, HISTLoss) else "has none")
            + ": set it to replicated."
        )
    for callback in recipe.training.callbacks or []:
        if processes.world > 1 and isinstance(callback, EpochMeasure | Snapshots):
            raise UserError(
                f"{type(callback).__name__} is among training.callbacks and looks at all proxies, but they are sharded "
                f"over {processes.world} processes: leave it out, or set proxies to replicated."
            )


def _check_schedule(recipe: Recipe, schedule: LRScheduler | None) -> None:
    if isinstance(schedule, ReduceLROnPlateau) and recipe.evaluation.select_on == "last":
        raise UserError(
            "optim.schedule is ReduceLROnPlateau, which waits for evaluation.metric on held-out classes, but "
            "evaluation.select_on is last, so that there are none: take another schedule, or select_on validation."
        )


def _second_phase(recipe: Recipe, model: EmbeddingModel, splits: Splits) -> Phase | None:
    second = recipe.second_phase
    if second is None:
        return None
    with torch.random.fork_rng(devices=[]):  # what it draws is replaced by the weights of the first phase
        loss = _loss(second.loss, recipe, splits)
    _check_schedule(recipe, second.optim.build(model, loss, sharded=recipe.proxies == "sharded")[1])
    return Phase(recipe.lengths[0], loss, second.optim)


def _networks(recipe: Recipe, splits: Splits) -> tuple[EmbeddingModel, Loss]:
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model)
    return model, _loss(recipe.loss, recipe, splits)


def _loss(make: MakesLoss, recipe: Recipe, splits: Splits) -> Loss:
    loss = make_loss(make, splits.train.num_classes, recipe.model.embedding_size, normalized=recipe.model.normalize)
    if isinstance(loss, ProxyLoss):
        loss.count_classes(_counts(splits))
    if recipe.training.class_balance is not None and not (isinstance(loss, ProxyLoss) and loss.data_wise):
        raise UserError(
            f"training.class_balance is {recipe.training.class_balance}, but {loss_name(loss)} has no values of "
            "samples that could be weighed: take a data-wise loss, as DataWiseMultiProxyAnchorLoss or a softmax loss, "
            "or leave it null."
        )
    return loss


def _counts(splits: Splits) -> Int[Tensor, " classes"]:
    """How many training images each class has."""
    return torch.bincount(splits.train.labels, minlength=splits.train.num_classes)


@torch.no_grad()
def _check_takes_images(recipe: Recipe, model: EmbeddingModel, run: RunDirectory) -> None:
    size = recipe.images.size
    modes = [(part, part.training) for part in model.modules()]
    try:
        model.eval()(torch.zeros(1, recipe.images.channels, size, size))
    except (AssertionError, RuntimeError) as error:
        if explanation(error, recipe, run):
            raise
        raise UserError(
            f"images.size is {size}, but the network ({recipe.model.backbone_name}) cannot take images of {size} by "
            f"{size} pixels ({' '.join(str(error).split())[:200].rstrip('.')}): give the size that it is made for."
        ) from error
    finally:
        for part, mode in modes:
            part.training = mode


def _held_out(recipe: Recipe, splits: Splits) -> tuple[ImageSet | None, str]:
    select_on = recipe.evaluation.select_on
    if select_on == "validation" and splits.validation is None:
        raise UserError(
            "There are no validation classes (data.validation_fraction is 0), but they choose the epoch: set it "
            "above 0, or take the last epoch with --evaluation.select_on last."
        )
    if select_on == "test" and splits.validation is not None:
        raise UserError(
            "The data gives validation classes of its own, which --no-validation would leave unused: make them "
            "training classes there, or set data.validation_fraction to 0."
        )
    if select_on == "test" and splits.test is None:
        raise UserError(
            "There are no test classes to choose the epoch on: take "
            "--evaluation.select_on last, or validation with data.validation_fraction above 0."
        )
    return {"validation": splits.validation, "test": splits.test, "last": None}[select_on], select_on


def _introduce(splits: Splits, selected_on: str, report: Callable[[str], object]) -> None:
    for note in splits.notes:
        report(note)
    parts = {"training": splits.train, "validation": splits.validation, "test": splits.test}
    for name, images in parts.items():
        if images is not None:
            report(f"{name}: {images.num_classes:,} classes, {len(images):,} images")
    if selected_on == "test":
        report("WARNING: the epoch is chosen on the test classes; the results are marked so and are too good.")


def _fit(
    recipe: Recipe, parts: _Parts, held_out: ImageSet | None, run: RunDirectory, show: _Show, processes: Processes
) -> RunCheckpointer:
    judge = None
    if held_out is not None:
        judge = RetrievalCallback(held_out, recipe.images, recipe.evaluation, workers=recipe.batches.workers)
    checkpointer = RunCheckpointer(
        run, recipe, judge, recipe.images.as_dict(), show.report, show.on_epoch, processes, show.times
    )
    bar = TrainingBar(checkpointer, recipe.batches.size, recipe.evaluation.metric)
    checkpoint = run.checkpoint if run.checkpoint.exists() else None
    step = read_checkpoint(checkpoint)["global_step"] if checkpoint else 0
    own_loggers = recipe.training.loggers
    _quiet()
    with warnings.catch_warnings():
        _ignore_what_is_meant()
        trainer = Trainer(
            accelerator=recipe.training.accelerator,
            **_hardware(recipe, processes),
            max_epochs=recipe.training.epochs,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            callbacks=[
                *([judge] if judge else []),
                *(recipe.training.callbacks or []),
                checkpointer,
                EpochOrder(parts.data),
                *([bar] if show.bars else []),
            ],
            enable_progress_bar=show.bars,
            enable_model_summary=False,
            logger=run_loggers(run.path / "logs", step) if own_loggers is None else own_loggers,
            plugins=_plugins(recipe, processes),
            use_distributed_sampler=False,
            default_root_dir=run.path,
        )
        if processes.world > 1:
            keep_sigterm(trainer)
        if processes.is_first:
            run.diverged.unlink(missing_ok=True)
        try:
            with checkpointer.heeding_signals():
                trainer.fit(parts.task, parts.data, ckpt_path=checkpoint, weights_only=True)
        except TrainingDiverged as error:
            kept = (
                f"the last good checkpoint, of step {keeper.step}, is kept in {run.path}"
                if run.checkpoint.exists()
                else "there is no checkpoint yet"
            )
            if processes.is_first:
                write_text(run.diverged, f"{error}\n")
            raise TrainingDiverged(f"{error}; {kept}.") from None
    return checkpointer


def _hardware(recipe: Recipe, processes: Processes) -> dict[str, Any]:
    precision = None if _scales_apart(recipe, processes) else recipe.training.precision
    if processes.world == 1:
        return {"devices": 1, "precision": precision}
    # In the first epochs the backbone may stand still.
    strategy = DDPStrategy(find_unused_parameters=recipe.training.warmup_epochs > 0)
    on_gpu = pick_device(recipe.training.accelerator).type == "cuda"
    return {
        "devices": [_gpu(processes)] if on_gpu else 1,
        "num_nodes": processes.world,  # as `ProcessesOfLightning` has it
        "strategy": strategy,
        "precision": precision,
    }


def _gpu(processes: Processes) -> int:
    """Which of the GPUs that this process sees is its own; srun may have shown it that one alone."""
    seen = torch.cuda.device_count()
    number = 0 if seen == 1 and "TORCHELASTIC_RUN_ID" not in os.environ else processes.local_rank
    if number >= seen:
        raise UserError(
            f"More than {seen} processes were started on a machine where they see {seen} GPUs: start one a GPU, or set "
            "training.accelerator to cpu."
        )
    return number


def _plugins(recipe: Recipe, processes: Processes) -> list[Any]:
    plugins: list[Any] = [AtomicCheckpointIO(), ProcessesOfLightning(processes)]
    if processes.world > 1 and recipe.training.sync_batch_norm:
        plugins.append(JoinedBatchNorm(pick_device(recipe.training.accelerator).type))
    if _scales_apart(recipe, processes):
        # An overflow in one process's proxies makes all of them leave the step out.
        plugins.append(MixedPrecision("16-mixed", "cuda", ShardedGradScaler()))  # type: ignore[arg-type]
    return plugins


def _scales_apart(recipe: Recipe, processes: Processes) -> bool:
    """Whether float16's scale is found by processes that hold different gradients."""
    return processes.world > 1 and recipe.proxies == "sharded" and recipe.training.precision == "16-mixed"


def _finish(
    recipe: Recipe,
    splits: Splits,
    checkpointer: RunCheckpointer,
    selected_on: str,
    run: RunDirectory,
    show: _Show,
    look_at_test: bool,
) -> dict[str, Any]:
    names = [name for each in recipe.training.callbacks or [] if isinstance(each, EpochMeasure) for name in each.names]
    best = checkpointer.best
    assert best is not None
    measured = {name: best[name] for name in names}
    other = {"epoch", "step", "loss", "seconds", *names}
    validation = {name: value for name, value in best.items() if name not in other}
    result = {} if splits.test is None or not look_at_test else _test(recipe, splits.test, splits, run, show)
    result |= {"epoch": int(best["epoch"]), "selected_on": selected_on, "seed": recipe.seed}
    if look_at_test:
        train = splits.train
        result |= {"split": _split(splits), "train_classes": train.num_classes, "train_images": len(train)}
    if selected_on == "validation":
        result["validation"] = validation
    if measured:
        result["measured"] = measured
        if run.measured_before.exists():  # an older run has none
            result["measured_before"] = read_json(run.measured_before)
    if checkpointer.ended:
        result["phases"] = [asdict(each) for each in checkpointer.ended]
    with show.times.of("pictures"):
        draw_curves(run.read_history(), recipe.evaluation.metric, run.path / "curves.png")
    # Of the process that has finished the run; apart from the metrics, which do not depend on it.
    write_json(run.path / "seconds.json", show.times.seconds())
    write_json(run.metrics, result)
    show.report(f"Wrote {run.path}")
    show.report(show.times.sentence())
    if splits.test is None and look_at_test:
        show.report(f"There are no test classes: judge it {recipe.data.judged.format(run=run.path)}")
    return result


def _split(splits: Splits) -> str:
    """What the test is of: unseen classes (open-set) or new images of trained ones (closed-set)."""
    if splits.test is None:
        return "nothing held out" if splits.validation is None else "no test"
    return "closed-set" if {*splits.test.class_names} & {*splits.train.class_names} else "open-set"


class _SideBySide(nn.ModuleList):
    """The embeddings of several networks, one after the other in each row."""

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dims"]:
        return torch.cat([network(images) for network in self], dim=1)


def _test(recipe: Recipe, images: ImageSet, splits: Splits, run: RunDirectory, show: _Show) -> dict[str, Any]:
    networks = {"test": load_model(run.path, recipe.model.own)[0]}
    if recipe.evaluation.untrained:
        networks["untrained"] = _networks(recipe, splits)[0]
    with show.times.of("test"):
        # In one pass: reading the images takes longer than embedding them.
        embeddings = embed_images(
            _SideBySide(networks.values()).to(pick_device(recipe.training.accelerator)),
            images,
            recipe.images,
            batch_size=recipe.evaluation.batch_size,
            workers=recipe.batches.workers,
            description="test",
        )
        each = [part.contiguous() for part in embeddings.chunk(len(networks), dim=1)]
        found = [evaluate_embeddings(part, images, recipe.evaluation) for part in each]
    with show.times.of("pictures"):
        draw_gallery(each[0], images, run.path / "gallery.png", distance=recipe.evaluation.distance)
    result: dict[str, Any] = {name: dict(values) for name, values in zip(networks, found, strict=True)}
    test = found[0]
    result["chance"] = test.chance
    classes = run.read_classes()
    trained = splits.train.class_names if classes is None else classes.trained
    trained_on = len({*images.class_names} & {*trained})
    return result | {
        "test_classes": images.num_classes,
        **({"test_classes_trained_on": trained_on} if trained_on else {}),
        "test_queries": test.queries,
        "test_queries_left_out": test.left_out,
    }


def _quiet() -> None:
    """Lightning's advice and device listings are not about the user's run."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _ignore_what_is_meant() -> None:
    for message in (
        ".*does not have many workers.*",
        ".*is smaller than the logging interval.*",
        ".*your dataloader is not resumable.*",  # ours is: see `TrainingData`
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*GPU available but not used.*",
        ".*module\\(s\\) in eval mode.*",  # frozen batch norm
        ".*`srun` command is available.*",  # without it, one process is meant
        ".*LeafSpec.* is deprecated.*",  # Lightning's own use of torch
        ".*Detected call of `lr_scheduler.step.*",  # half precision leaves the step out whose gradients overflow
    ):
        warnings.filterwarnings("ignore", message)

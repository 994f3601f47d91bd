"""Sentences for failures of a run that the user can mend."""

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch

import proxemic
from proxemic.errors import Interrupted, OutOfMemory, TrainingDiverged, UserError
from proxemic.training.recipe import Recipe
from proxemic.training.run_directory import RunDirectory
from proxemic.training.workers import NO_SHARED_MEMORY

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_OTHER_WEIGHTS = ("in loading state_dict for", "loaded state dict")  # as torch says of modules and of optimisers


@contextmanager
def explained(recipe: Recipe, run: RunDirectory) -> Iterator[None]:
    """Raise an error that says in one sentence what failed, in place of one that `explanation` has a sentence for.

    A `ValueError` of the user's own code stays one, as it may be about a value of the recipe.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        sentence = explanation(error, recipe, run)
        if sentence is None:
            raise
        kind = OutOfMemory if _is_no_memory(error) else ValueError if isinstance(error, ValueError) else UserError
        raise kind(f"{sentence}.") from error


@contextmanager
def to_be_continued(run: RunDirectory) -> Iterator[None]:
    """Add to an error that the user can mend how the run is then continued."""
    try:
        yield
    except (Interrupted, TrainingDiverged):
        raise
    except (UserError, OSError) as error:
        kind = type(error) if isinstance(error, UserError) else UserError
        raise kind(f"{f'{error}'.rstrip('.')}. Then continue with proxemic train --resume {run.path}.") from error


def explanation(error: Exception, recipe: Recipe, run: RunDirectory) -> str | None:
    """Say in one sentence, without a full stop, what failed; None where that is not known."""
    message = " ".join(str(error).split())
    if _is_no_memory(error):
        return _no_memory(message, recipe, run)
    if place := _own_code(error):
        return f"{place} with {type(error).__name__}: {message[:300]} (proxemic --traceback shows the way there)"
    if isinstance(error, RuntimeError) and "shared memory" in message:
        return NO_SHARED_MEMORY
    if isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, RuntimeError) and "DataLoader worker" in message
    ):  # the first two where it was killed while it handed images over
        return (
            "A process that loads images was killed, for want of memory perhaps (in a container, of /dev/shm: docker "
            f"run --shm-size 2g): lower batches.workers in {run.recipe}"
        )
    if "more than 1 value per channel when training" in message:
        parts = recipe.batches.micro_batches
        return (
            "A batch norm was given a batch of one image, which has no variance: raise batches.size, which is "
            f"{recipe.batches.size}, {f'lower batches.micro_batches, which is {parts}, ' * (parts > 1)}or set "
            "model.freeze_batch_norm to true"
        )
    if isinstance(error, RuntimeError | ValueError) and any(words in message for words in _OTHER_WEIGHTS):
        return (
            f"{run.checkpoint} does not fit the recipe beside it ({message[:200]}): put back the checkpoint, or the "
            "recipe, of this run, or begin anew with another --out"
        )
    return None


def _is_no_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def _no_memory(message: str, recipe: Recipe, run: RunDirectory) -> str:
    batches = recipe.batches
    where = f" in {run.recipe}" if run.recipe.exists() else ""
    reason = f" ({message[:200].rstrip('.')})" if message else ""
    return (
        f"The memory is not enough{reason}: raise batches.micro_batches, which is {batches.micro_batches} (the same "
        f"loss, in the memory of a part of the batch), or lower batches.size, which is {batches.size}, or "
        f"evaluation.batch_size, which is {recipe.evaluation.batch_size}{where}"
    )


def _own_code(error: Exception) -> str | None:
    """The place in a class of the user's own that an error came from; None where no such class was involved."""
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if not _is_installed(frame)]
    methods = [frame for frame, _ in frames if _is_own(frame.f_locals.get("self"))]
    caller = frames[0][0].f_back if frames else None
    by_checkpointer = caller is not None and caller.f_globals["__name__"] == "proxemic.training.checkpointing"
    if not methods or by_checkpointer:  # the checkpointer calls `train`'s on_epoch, which ends a training by an error
        return None
    owner, (last, line) = type(methods[-1].f_locals["self"]), frames[-1]
    name = f"{owner.__module__}.{owner.__qualname__}.{methods[-1].f_code.co_name}"
    return f"{name} failed at {last.f_code.co_filename}:{line}"


def _is_own(instance: object) -> bool:
    return instance is not None and type(instance).__module__.partition(".")[0] != "proxemic"


def _is_installed(frame: FrameType) -> bool:
    path = Path(frame.f_code.co_filename)
    return (
        not path.is_absolute()  # what was generated
        or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
        or any(path.is_relative_to(folder) for folder in _OURS)
    )


_OURS = (Path(sysconfig.get_path("stdlib")), *map(Path, proxemic.__path__))

"""Sentences for failures of a run that the user can mend."""

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch

import proxemic
from proxemic.errors import Interrupted, OutOfMemory, UserError
from proxemic.training.checkpointing import RunCheckpointer
from proxemic.training.module import TrainingDiverged
from proxemic.training.recipe import Recipe
from proxemic.training.run_directory import RunDirectory

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_OTHER_WEIGHTS = ("in loading state_dict for", "loaded state dict")  # torch's words, of modules and of optimisers


@contextmanager
def explained(recipe: Recipe, run: RunDirectory) -> Iterator[None]:
    """Say in one sentence what failed: too little memory, a lost process, a foreign checkpoint, the user's own code.

    Raises:
        UserError: In place of the error that it explains; `OutOfMemory` for want of memory.
        ValueError: In place of one from the user's own code, which may be about a value of the recipe.
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
    """Add to an error that the user can mend how the run is then continued.

    Raises:
        UserError: The error, with that sentence.
    """
    try:
        yield
    except (Interrupted, TrainingDiverged):
        raise
    except (UserError, OSError) as error:
        kind = type(error) if isinstance(error, UserError) else UserError
        raise kind(f"{f'{error}'.rstrip('.')}. Then continue with proxemic train --resume {run.path}.") from error


def explanation(error: Exception, recipe: Recipe, run: RunDirectory) -> str | None:
    """Give the sentence of `explained` for an error, without a full stop; None where it has none."""
    message = " ".join(str(error).split())
    if _is_no_memory(error):
        return _no_memory(message, recipe, run)
    if place := _own_code(error):
        return f"{place} with {type(error).__name__}: {message[:300]} (proxemic --traceback shows the way there)"
    if isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, RuntimeError) and "DataLoader worker" in message
    ):  # the first two, where one was killed while it handed images over
        return (
            "A process that loads images was killed, for want of memory perhaps (in a container, of /dev/shm): lower "
            f"batches.workers in {run.recipe}"
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
    """Give the place in a class of the user from which an error came; None where no such class was involved."""
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if not _is_installed(frame)]
    methods = [frame for frame, _ in frames if _is_own(frame.f_locals.get("self"))]
    if not methods or _called_by_checkpointer(frames[0][0]):
        return None
    owner, (last, line) = type(methods[-1].f_locals["self"]), frames[-1]
    name = f"{owner.__module__}.{owner.__qualname__}.{methods[-1].f_code.co_name}"
    return f"{name} failed at {last.f_code.co_filename}:{line}"


def _is_own(instance: object) -> bool:
    return instance is not None and type(instance).__module__.partition(".")[0] != "proxemic"


def _called_by_checkpointer(frame: FrameType) -> bool:
    """Whether it is what `train` was given as ``on_epoch``, which ends a training by what it raises."""
    return frame.f_back is not None and frame.f_back.f_globals["__name__"] == RunCheckpointer.__module__


def _is_installed(frame: FrameType) -> bool:
    path = Path(frame.f_code.co_filename)
    return (
        not path.is_absolute()  # what was generated
        or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
        or any(path.is_relative_to(folder) for folder in _OURS)
    )


_OURS = (Path(sysconfig.get_path("stdlib")), *map(Path, proxemic.__path__))

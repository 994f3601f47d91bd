"""Explains errors of a run that the user can fix."""

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import CodeType

import proxemic
from proxemic.errors import Interrupted, OutOfMemory, TrainingDiverged, UserError, is_out_of_memory
from proxemic.runs.directory import RunDirectory
from proxemic.runs.processes import is_lost_connection
from proxemic.runs.workers import NO_SHARED_MEMORY
from proxemic.training.recipe import Recipe
from proxemic.training.record import Session

_OTHER_WEIGHTS = ("in loading state_dict for", "loaded state dict")  # messages of torch about modules and optimisers


@contextmanager
def explained(session: Session) -> Iterator[None]:
    """Turn errors that the user can fix into one sentence, which also says how to continue a run that has begun.

    A `ValueError` of the user's own code stays a `ValueError`, since it may be about a value of the recipe. Errors that
    ``on_epoch`` raised are not changed.
    """
    proceed = f"continue with proxemic train --resume {session.run.path}"
    try:
        yield
    except KeyboardInterrupt:
        if not session.begun:
            raise
        raise Interrupted(f"Stopped; what was saved is kept: {proceed}") from None
    except Exception as error:
        if isinstance(error, Interrupted | TrainingDiverged) or error is session.raised or is_lost_connection(error):
            raise
        raised: Exception = error
        if not isinstance(error, UserError) and (sentence := explanation(error, session.recipe, session.run)):
            own = OutOfMemory if is_out_of_memory(error) else ValueError if isinstance(error, ValueError) else UserError
            raised = own(f"{sentence}.")
        if session.begun and isinstance(raised, UserError | OSError):
            user = type(raised) if isinstance(raised, UserError) else UserError
            raised = user(f"{f'{raised}'.rstrip('.')}. Then {proceed}.")
        if raised is error:
            raise
        raise raised from error


def explanation(error: Exception, recipe: Recipe, run: RunDirectory) -> str | None:
    """Return one sentence, without a full stop, about the cause of an error; None if it is unknown."""
    message = " ".join(str(error).split())
    if is_out_of_memory(error):
        return _no_memory(message, recipe, run)
    if isinstance(error, RuntimeError) and "shared memory" in message:
        return NO_SHARED_MEMORY
    if isinstance(error, ConnectionError | EOFError) or (
        isinstance(error, RuntimeError) and "DataLoader worker" in message
    ):  # the first two if it was killed while it passed images on
        return (
            "A process that loads images was killed, perhaps for lack of memory (in a container, lack of /dev/shm: "
            f"docker run --shm-size 2g): lower batches.workers in {run.recipe}"
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
            f"{run.checkpoint} does not fit the recipe next to it ({message[:200]}): put back the checkpoint, or the "
            "recipe, of this run, or begin anew with another --out"
        )
    if place := _own_code(error):
        return f"{place} with {type(error).__name__}: {message[:300]} (proxemic --traceback shows the way there)"
    return None


def _no_memory(message: str, recipe: Recipe, run: RunDirectory) -> str:
    batches = recipe.batches
    where = f" in {run.recipe}" if run.recipe.exists() else ""
    reason = f" ({message[:200].rstrip('.')})" if message else ""
    return (
        f"The memory is not enough{reason}: raise batches.micro_batches, which is {batches.micro_batches} (the same "
        f"loss, with the memory of one micro-batch), or lower batches.size, which is {batches.size}, or "
        f"evaluation.batch_size, which is {recipe.evaluation.batch_size}{where}"
    )


def _own_code(error: Exception) -> str | None:
    """Return the name and place of the user's own function in which an error was raised; None if there is none."""
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if not _is_installed(frame.f_code)]
    if not frames:
        return None
    first, (last, line) = frames[0][0], frames[-1]
    name = f"{first.f_globals['__name__']}.{first.f_code.co_qualname}"
    return f"{name} failed at {last.f_code.co_filename}:{line}"


def _is_installed(code: CodeType) -> bool:
    path = Path(code.co_filename)
    return (
        not path.is_absolute()  # generated code
        or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
        or any(path.is_relative_to(folder) for folder in _OURS)
    )


_OURS = (Path(sysconfig.get_path("stdlib")), *map(Path, proxemic.__path__))

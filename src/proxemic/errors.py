"""Failures that a user can act on: one sentence each, shown without a traceback by the command line."""


class UserError(Exception):
    """Wrong input of the user, or a lack of the machine; the message says what came, what is allowed and what to do."""


class Interrupted(UserError):
    """The user stopped the work; the message says how to take it up again."""


class OutOfMemory(UserError):
    """The work needs more memory than there is; the message says which settings need less."""


class UserNote(UserWarning):
    """Something the user should know, although the work goes on: a warning, which the command line prints as a line."""


class TrainingDiverged(UserError):
    """The loss or the weights are no longer finite."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or torch says that memory could not be allocated."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )

"""Errors that a user can act on: the command line shows each as one sentence, without a traceback."""


class UserError(Exception):
    """Invalid input, or a lack of resources; the message says what was given, what is allowed and what to do."""


class Interrupted(UserError):
    """The user stopped the work; the message says how to continue."""


class OutOfMemory(UserError):
    """There is too little memory; the message says which settings need less."""


class UserNote(UserWarning):
    """A warning for the user, which the command line prints as one line."""


class TrainingDiverged(UserError):
    """The loss or the weights have become infinite or NaN."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or torch says that memory could not be allocated."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )

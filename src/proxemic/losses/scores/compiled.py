"""Functions that are compiled when they are first called, and run as they are where that cannot be done."""

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch

from proxemic.losses.checks import shown

CompileChunks = bool | Literal["triton"]
"""Whether `torch.compile` joins the operations on a chunk, or kernels of our own take their place."""


def check_compile_chunks(value: Any) -> CompileChunks:
    """The value, if it is one; `ValueError` names those that there are."""
    if isinstance(value, bool) or (isinstance(value, str) and value == "triton"):
        return value
    raise ValueError(f"compile_chunks is {shown(value)}, but must be True, False, or triton for Triton kernels.")


class Compiled:
    """A function by `torch.compile`, for tensors of any size; uncompiled, after one warning, where that fails.

    Args:
        function: Without breaks of its graph. Whether it can be compiled is known before it changes anything.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        if torch.compiler.is_compiling():  # it is part of something larger
            return self.function(*arguments)
        if self._compiled is None:
            self._compiled = torch.compile(self.function, fullgraph=True, dynamic=True)
        if self._compiled is not self.function:
            from torch._dynamo.exc import TorchDynamoException

            try:
                return self._compiled(*arguments)
            except (TorchDynamoException, ImportError) as error:
                reason = " ".join(str(error).splitlines()[:2])
                warnings.warn(
                    f"The loss runs uncompiled, as torch.compile failed ({type(error).__name__}: {reason}): leave out "
                    "compile_chunks, or see https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html.",
                    stacklevel=2,
                )
                self._compiled = self.function
        return self.function(*arguments)

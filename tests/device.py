"""Tests of a device: the tensors that they make are put there."""

import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class OnDevice(TorchFunctionMode):
    """Moves tensors that tests create without a device, and the parameters of modules that they construct.

    Numbers are drawn on the CPU: they are those of a test there, and its generators are of use. Unlike with
    `torch.set_default_device`, what the package makes stays where it is made, which must be where its arguments are.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function not in _device_constructors() or kwargs.get("device") is not None:
            return result
        if args and isinstance(args[0], Tensor):  # as_tensor of a tensor, which has a device
            return result
        frame = sys._getframe(1)
        module: str = frame.f_globals.get("__name__", "")
        constructed = module.startswith(("proxemic.losses.", "torch.nn.")) and frame.f_code.co_name == "__init__"
        if module.startswith(("proxemic.", "torch.")) and not constructed:
            return result
        return self.move(result.detach()).requires_grad_(result.requires_grad)

    def move(self, tensor: Tensor) -> Tensor:
        """The tensor on the device."""
        return tensor.to(self.device)

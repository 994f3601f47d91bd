"""Where tensors are, for what is done in another way there."""

from torch import Tensor


def on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on a GPU, which wants few large operations, and not such as fit a processor's cache."""
    return tensor.is_cuda

"""Folding of batch norm into the convolutions before it: the same network in evaluation mode, but faster."""

from collections import Counter

from torch import fx, nn
from torch.nn.utils import fuse_conv_bn_eval


class _Tracer(fx.Tracer):
    """Tracer that does not look into timm's layers: batch norm with activation, and convolutions with own padding."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d | nn.BatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


def fold_batch_norm(network: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode with each batch norm after a convolution folded into its weights.

    The copy shares all other layers. A network that cannot be traced, because its layers depend on computed values, is
    returned unchanged.
    """
    from timm.layers import BatchNormAct2d, Conv2dSame

    layers = dict(network.named_modules())
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in layers.values()):
        return network
    try:
        graph = _Tracer().trace(network)
    except Exception:  # a network may raise anything if it gets a symbol instead of a tensor
        return network
    folded = fx.GraphModule(network, graph)
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        names = str(before.target), str(node.target)
        convolution, norm = (layers[name] for name in names)
        # Not subclasses: one that standardises its weights would undo the folding.
        plain = type(convolution) in (nn.Conv2d, Conv2dSame) and type(norm) in (nn.BatchNorm2d, BatchNormAct2d)
        if not plain or calls[names[0]] > 1 or calls[names[1]] > 1:
            continue
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        if norm.running_var is not None:
            folded.set_submodule(names[0], fuse_conv_bn_eval(convolution, norm))
            folded.set_submodule(names[1], nn.Sequential(*norm.children()))  # timm's contain dropout and activation
    return folded

"""Batch norm folded into the convolutions before it: the same network in evaluation, but faster."""

from collections import Counter

from torch import fx, nn
from torch.nn.utils import fuse_conv_bn_eval


class _Tracer(fx.Tracer):
    """Leaves timm's layers whole: batch norm with an activation, and convolutions that pad by the image's size."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d | nn.BatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


def fold_batch_norm(network: nn.Module) -> nn.Module:
    """Fold each batch norm that follows a convolution into its weights, in a copy in evaluation mode.

    The rest is shared. A network whose layers depend on values that others compute is returned as it is.
    """
    from timm.layers import BatchNormAct2d, Conv2dSame

    layers = dict(network.named_modules())
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in layers.values()):
        return network
    try:
        graph = _Tracer().trace(network)
    except Exception:  # of whatever kind that a symbol instead of a tensor raises
        return network
    made = fx.GraphModule(network, graph)
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        names = str(before.target), str(node.target)
        convolution, norm = (layers[name] for name in names)
        # Not their subclasses: one that standardises its weights would undo the folding.
        plain = type(convolution) in (nn.Conv2d, Conv2dSame) and type(norm) in (nn.BatchNorm2d, BatchNormAct2d)
        if not plain or calls[names[0]] > 1 or calls[names[1]] > 1:
            continue
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        if norm.running_var is not None:
            made.set_submodule(names[0], fuse_conv_bn_eval(convolution, norm))
            made.set_submodule(names[1], nn.Sequential(*norm.children()))  # of timm's: its dropping and activation
    return made

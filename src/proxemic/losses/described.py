"""Modules whose ``repr`` shows their arguments, and which know what other libraries call these."""

import inspect
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from torch import Tensor, nn

ELSEWHERE = {
    "temperature": ("scale", "scale=1/temperature"),
    "softmax_scale": (None, "temperature=1/softmax_scale to ProxyNCAPlusPlusLoss, which PML's ProxyNCALoss is"),
    "la": ("scale", "scale=la"),
    "s": ("scale", "scale=s"),
    "m": ("margin", "margin=m"),
    "mrg": ("margin", "margin=mrg"),
    "delta": ("margin", "margin=delta"),
    "tau": ("center_weight", "center_weight=tau"),
    "centers_per_class": ("proxies_per_class", "proxies_per_class=centers_per_class"),
    "sub_centers": ("proxies_per_class", "proxies_per_class=sub_centers, pooling=MaxPooling()"),
    "K": ("proxies_per_class", "proxies_per_class=K"),
    "in_features": ("embedding_size", "embedding_size=in_features"),
    "dim": ("embedding_size", "embedding_size=dim"),
    "sz_embed": ("embedding_size", "embedding_size=sz_embed"),
    "out_features": ("num_classes", "num_classes=out_features"),
    "nb_classes": ("num_classes", "num_classes=nb_classes"),
    "cN": ("num_classes", "num_classes=cN"),
    "weight_init_func": ("init", "init, a function that fills the proxies in place"),
    "weight_regularizer": ("regularizers", "regularizers, as (MeanProxyNorm(1.0),)"),
    "embedding_regularizer": (None, "none: add such a term to the value of the loss"),
    "distance": (None, "none: every loss has its own similarity"),
    "reducer": (None, "reduction to the call, as loss(embeddings, labels, reduction='none')"),
}
"""Keywords of pytorch-metric-learning (PML), OML and authors' code, each with the keyword here, if any, and advice."""

_PAIRS = "PairwiseLoss(loss=…, miner=…) calls its miner itself, and proxy losses take no pairs, but weights= of samples"
_REFERENCE = "PairwiseLoss takes reference=(ref_emb, ref_labels), and proxy losses compare with their proxies alone"
CALLED_WITH = {"indices_tuple": _PAIRS, "ref_emb": _REFERENCE, "ref_labels": _REFERENCE}
"""Arguments of calls of PML's losses, each with what replaces it here."""

_PROXIES = "the proxies are loss.proxies, [classes, proxies, dim]"
ATTRIBUTES = {
    "W": _PROXIES,
    "fc": _PROXIES,
    "weight": _PROXIES,
    "get_logits": "call class_logits(embeddings), or class_scores(embeddings) for scores without the scale",
    "get_outliers": "call outliers(embeddings, labels)",
}
"""Attributes of losses of PML and OML, each with what replaces it here."""


class Described(nn.Module):
    """A module whose ``repr`` shows every argument of its constructor, the defaults included.

    An argument or attribute that other libraries have and this class lacks is an error that says what replaces it.
    """

    _made_with: ClassVar[str] = ""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        signature = inspect.signature(cls.__init__)
        open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        if not open_ended:
            known = [*signature.parameters][1:]
            if arguments and known[0] == "num_classes" and "num_classes" in keywords:
                raise TypeError(
                    f"{cls.__name__} is given num_classes twice: it is its first argument, and embedding_size its "
                    "second, where OML's losses have in_features first."
                )
            for name in keywords:
                if name not in known and (advice := keyword_here(name, known)):
                    raise TypeError(f"{cls.__name__} has no argument {name}: {advice}.")
        made = super().__new__(cls)
        try:
            given = signature.bind(made, *arguments, **keywords)
        except TypeError:  # the constructor will say so; what copies or unpickles calls none, and brings the text
            return made
        given.apply_defaults()
        shown = [f"{name}={_shown(value)}" for name, value in [*given.arguments.items()][1:]]
        vars(made)["_made_with"] = ", ".join(shown)
        return made

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if len(arguments) > 2 or any(name in CALLED_WITH for name in keywords):
            _check_call(self, arguments, keywords)
        return super().__call__(*arguments, **keywords)

    if not TYPE_CHECKING:  # a type checker would take any attribute

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                if name not in ATTRIBUTES:
                    raise
                raise AttributeError(f"{error}: {ATTRIBUTES[name]}.", name=name, obj=self) from None

    def extra_repr(self) -> str:
        return self._made_with

    def __prepare_scriptable__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be scripted: script the network alone, which is what is deployed, or "
            "compile the loss with torch.compile."
        )


def keyword_here(name: str, known: Collection[str]) -> str | None:
    """What to give in place of another library's keyword, of the arguments in ``known``; `None` for other names.

    >>> keyword_here("la", ["scale", "margin"])
    'give scale=la'
    """
    if name not in ELSEWHERE:
        return None
    ours, advice = ELSEWHERE[name]
    return f"give {advice}" if ours is None or ours in known else f"give one of {', '.join(known)}"


def _check_call(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    try:
        inspect.signature(module.forward).bind(*arguments, **keywords)
    except TypeError as error:
        # PML's third positional argument is the output of a miner.
        name = next((name for name in CALLED_WITH if name in keywords), "indices_tuple")
        raise TypeError(f"{type(module).__name__} takes no {name} ({error}): {CALLED_WITH[name]}.") from None


def _shown(value: Any) -> str:
    if isinstance(value, Described):
        return f"{type(value).__name__}({value.extra_repr()})"
    if isinstance(value, nn.Module):  # PML's say nothing of their arguments, but keep them under the same names
        names = [name for name in inspect.signature(type(value)).parameters if hasattr(value, name)]
        return f"{type(value).__name__}({', '.join(f'{name}={_shown(getattr(value, name))}' for name in names)})"
    if isinstance(value, partial):
        return f"{_shown(value.func)}({', '.join(f'{name}={_shown(each)}' for name, each in value.keywords.items())})"
    if isinstance(value, Tensor):
        return _shown(value.tolist())
    if isinstance(value, list | tuple):
        if len(value) > 8 and all(isinstance(each, int | float) for each in value):
            return f"[{len(value)} values, {min(value):g} to {max(value):g}]"
        return f"[{', '.join(map(_shown, value))}]"
    return value.__qualname__ if inspect.isroutine(value) or inspect.isclass(value) else repr(value)

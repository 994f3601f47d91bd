"""Small ONNX files, written byte by byte: their usual writer is not among what the tests need."""

from collections.abc import Sequence

import numpy as np

FLOAT, CONV, POOL, FLATTEN = 1, "Conv", "GlobalAveragePool", "Flatten"
WEIGHT = np.linspace(-1, 1, 5 * 3 * 2 * 2).reshape(5, 3, 2, 2).astype("<f4")


def _number(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + _number(high) if high else bytes([low])


def field(number: int, value: int | str | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    content = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | 2) + _number(len(content)) + content


def value(name: str, shape: Sequence[int | str], kind: int = FLOAT) -> bytes:
    """An input or output; a text is a size that any batch decides."""
    sizes = b"".join(field(1, field(1 if isinstance(size, int) else 2, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, sizes)))


def node(operator: str, inputs: Sequence[str], output: str, domain: str = "") -> bytes:
    """An operator."""
    return b"".join(field(1, input_) for input_ in inputs) + field(2, output) + field(4, operator) + field(7, domain)


def weight(name: str = "w", elsewhere: str | None = None) -> bytes:
    """The weight of the convolution, or where it is said to be."""
    shape = b"".join(field(1, size) for size in WEIGHT.shape)
    if elsewhere is None:
        return shape + field(2, FLOAT) + field(8, name) + field(9, WEIGHT.tobytes())
    return (
        shape + field(2, FLOAT) + field(8, name) + field(13, field(1, "location") + field(2, elsewhere)) + field(14, 1)
    )


def network(
    images: Sequence[int | str] = ("n", 3, "h", "w"),
    *,
    nodes: Sequence[bytes] = (),
    weights: bytes | None = None,
    inputs: Sequence[bytes] | None = None,
) -> bytes:
    """A convolution, whose map is the output `map`, and the mean of the map, which is the first output `features`."""
    own = (node(CONV, ["x", "w"], "map"), node(POOL, ["map"], "mean"), node(FLATTEN, ["mean"], "features"))
    batch = images[0]
    outputs = [value("features", [batch, 5]), value("map", [batch, 5, "a", "b"])]
    graph = b"".join(field(1, item) for item in (*own, *nodes)) + field(2, "graph")
    graph += field(5, weight() if weights is None else weights)
    graph += b"".join(field(11, input_) for input_ in (inputs or [value("x", images)]))
    graph += b"".join(field(12, output) for output in outputs)
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 17))

"""Triton kernels of a chunk of classes whose scores are pooled cosines: they write sums and gradients, no scores.

Both multiply unit embeddings ``x [batch, D]`` and proxies ``w [classes · K, D]``, a tile of each in a program, and make
logits of the products, ``(a·S + offset)/ln 2``, with −∞ for the target class. ``AXIS`` is what is summed over: 0 the
classes, 1 the batch. K is padded to a power of 2, and all proxies of a class are in one tile. ``sharpness`` is 1/γ of
the softmax that pools them, or 0, for their mean or (``NEAREST``) the largest.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(
    x,
    w,
    labels,
    offsets,
    first,
    classes,
    batch,
    scale,
    sharpness,
    D: tl.constexpr,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    NEAREST: tl.constexpr,
    CLASSES: tl.constexpr,
    BATCH: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The places of a tile, its similarities ``[rows, batch]``, and what pooling and logits are made of them."""
    i = tl.program_id(0) // tl.cdiv(batch, BATCH)
    j = tl.program_id(0) % tl.cdiv(batch, BATCH)
    c = i * CLASSES + tl.arange(0, CLASSES)
    b = j * BATCH + tl.arange(0, BATCH)
    k = tl.arange(0, PADDED)
    row = tl.reshape(c[:, None].to(tl.int64) * K + k[None, :], (CLASSES * PADDED,))
    inside = tl.reshape((c < classes)[:, None] & (k < K)[None, :], (CLASSES * PADDED,))
    similarities = tl.zeros((CLASSES * PADDED, BATCH), tl.float32)
    for start in range(0, D, DEPTH):
        d = start + tl.arange(0, DEPTH)
        left = tl.load(w + row[:, None] * D + d[None, :], inside[:, None] & (d < D)[None, :], 0.0)
        right = tl.load(x + b[None, :].to(tl.int64) * D + d[:, None], (b < batch)[None, :] & (d < D)[:, None], 0.0)
        similarities = tl.dot(left, right, similarities, input_precision=PRECISION)
    if K > 1:
        grouped = tl.reshape(similarities, (CLASSES, PADDED, BATCH))
        powers = tl.where((k < K)[None, :, None], grouped, -float("inf"))
        if NEAREST:
            weights = tl.where(k[None, :, None] == tl.argmax(powers, 1, keep_dims=True), 1.0, 0.0)
        else:
            # e^{s/γ} as a power of 2; where 1/γ is 0, −∞ · 0 would be nan.
            powers = (powers - tl.max(powers, 1, keep_dims=True)) * tl.maximum(sharpness * 1.4426950408889634, 1e-30)
            powers = tl.exp2(powers)
            weights = powers / tl.sum(powers, 1, keep_dims=True)
        pooled = tl.sum(weights * grouped, 1)
    else:
        weights = similarities
        pooled = similarities
    logits = pooled * (scale * 1.4426950408889634)
    if offsets is not None:
        logits += tl.load(offsets + c, c < classes, 0.0)[:, None]
    label = tl.load(labels + b, b < batch, 0) - first
    summed = (c < classes)[:, None] & (b < batch)[None, :] & (label[None, :] != c[:, None])
    logits = tl.where(summed, logits, -float("inf"))
    return i, j, c, b, row, inside, similarities, weights, pooled, logits


@triton.jit(do_not_specialize=["first", "classes"])
def log_sums(
    x,
    w,
    labels,
    offsets,
    sums,
    first,
    classes,
    batch,
    scale,
    sharpness,
    AXIS: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    NEAREST: tl.constexpr,
    CLASSES: tl.constexpr,
    BATCH: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add ``Σ 2^logits`` of each tile to that of which ``sums [tiles along AXIS, length of the other]`` has the log."""
    i, j, c, b, _, _, _, _, _, logits = _tile(
        x, w, labels, offsets, first, classes, batch, scale, sharpness,
        D, K, PADDED, NEAREST, CLASSES, BATCH, DEPTH, PRECISION,
    )  # fmt: skip
    if AXIS == 0:
        place = sums + i.to(tl.int64) * batch + b
        kept = b < batch
    else:
        place = sums + j.to(tl.int64) * classes + c
        kept = c < classes
    before = tl.load(place, kept, -float("inf"))
    highest = tl.maximum(tl.maximum(tl.max(logits, AXIS), before), -3.0e38)
    total = tl.sum(tl.exp2(logits - tl.expand_dims(highest, AXIS)), AXIS) + tl.exp2(before - highest)
    tl.store(place, highest + tl.log2(total), kept)


@triton.jit(do_not_specialize=["first", "classes"])
def slopes(
    x,
    w,
    labels,
    offsets,
    normalizers,
    factors,
    grad,
    along,
    first,
    classes,
    batch,
    scale,
    sharpness,
    AXIS: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    NEAREST: tl.constexpr,
    CLASSES: tl.constexpr,
    BATCH: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write ``grad [rows, batch]``, that of the similarities by class scores with ``2^(logits − normalizer) · factor``.

    And ``along [tiles of the batch, rows]``, which is its product with the similarities, summed over a tile.
    """
    _, j, c, b, row, inside, similarities, weights, pooled, logits = _tile(
        x, w, labels, offsets, first, classes, batch, scale, sharpness,
        D, K, PADDED, NEAREST, CLASSES, BATCH, DEPTH, PRECISION,
    )  # fmt: skip
    if AXIS == 0:
        normalizer = tl.load(normalizers + b, b < batch, 0.0)
        factor = tl.load(factors + b, b < batch, 0.0)
    else:
        normalizer = tl.load(normalizers + c, c < classes, 0.0)
        factor = tl.load(factors + c, c < classes, 0.0)
    slope = tl.exp2(logits - tl.expand_dims(normalizer, AXIS)) * tl.expand_dims(factor, AXIS)
    if K > 1:
        # ∂S/∂s_k = q_k (1 + (s_k − S)/γ)
        grouped = tl.reshape(similarities, (CLASSES, PADDED, BATCH))
        inner = 1 + (grouped - tl.expand_dims(pooled, 1)) * sharpness
        slope = tl.expand_dims(slope, 1) * weights * inner
        slope = tl.reshape(slope, (CLASSES * PADDED, BATCH))
    tl.store(grad + row[:, None] * batch + b[None, :], slope, inside[:, None] & (b < batch)[None, :])
    tl.store(along + j.to(tl.int64) * classes * K + row, tl.sum(slope * similarities, 1), inside)

"""What tells whether two pictures are the same: a hash of their pixels, a signature of how they look, a closer look."""

import hashlib

import numpy as np
from jaxtyping import Float32
from PIL import Image

from proxemic.data.pixels.reading import cut_thin

_SIDE, _LIGHT, _COLOUR = 32, 8, 3
_DETAIL = 64  # pixels on a side, beyond which compression changes more than a look shows
LENGTH = _LIGHT**2 - 1 + 2 * _COLOUR**2
_FAINT = 1.0  # root mean square of grey levels about their mean, below which there is nothing to compare


def content_hash(image: Image.Image) -> bytes:
    """A hash of size and decoded pixels: equal for a picture and its lossless copy in another format.

    >>> picture = Image.new("L", (4, 3), 7)
    >>> content_hash(picture) == content_hash(picture.convert("RGB")) != content_hash(picture.resize((3, 4)))
    True
    """
    colours = image.convert("RGB")
    return hashlib.blake2b(b"%d %d " % colours.size + colours.tobytes(), digest_size=16).digest()


def signature(image: Image.Image) -> Float32[np.ndarray, " numbers"]:
    """The low frequencies of a picture, of unit length: nearly equal after recompression, resizing and brightening.

    As in the perceptual hash pHash, these are of the discrete cosine transform of the picture at 32 by 32 pixels: the
    64 lowest of the luminance but its mean, and the 9 lowest of each chrominance, so that a shirt in two colours is two
    pictures. They are kept as numbers, and compared by correlation: as bits, those of drawings and symmetric pictures,
    many of which are nearly 0, are left to rounding. A picture without structure has zeros, which resemble nothing.

    >>> ramp = Image.linear_gradient("L")
    >>> round(float(signature(ramp) @ signature(ramp.resize((90, 70)).point(lambda grey: grey * 0.8))), 2)
    1.0
    """
    small = cut_thin(image).convert("YCbCr").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    light, blue, red = np.moveaxis(np.asarray(small, dtype=np.float32), 2, 0)
    parts = [
        _lowest(light, _LIGHT).ravel()[1:],
        _lowest(blue - 128, _COLOUR).ravel(),
        _lowest(red - 128, _COLOUR).ravel(),
    ]
    numbers = np.concatenate(parts)
    norm = np.linalg.norm(numbers)
    return numbers / norm if norm >= _FAINT * _SIDE else np.zeros_like(numbers)


def mirrored(signatures: Float32[np.ndarray, "rows numbers"]) -> Float32[np.ndarray, "rows numbers"]:
    """Return the signatures of the same pictures, mirrored left to right.

    A mirror image changes the sign of the frequencies that are odd from left to right.

    >>> ramp = Image.linear_gradient("L").rotate(30)
    >>> other = signature(ramp.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    >>> bool(np.allclose(mirrored(signature(ramp)[None])[0], other, atol=1e-3))
    True
    """
    return signatures * _MIRROR


def reduced(image: Image.Image) -> Image.Image:
    """Make a grey copy for `difference`, of at most 64 pixels in width and in height."""
    image = cut_thin(image)
    size = min(image.width, _DETAIL), min(image.height, _DETAIL)
    return image.convert("L").resize(size, Image.Resampling.BICUBIC)


def difference(first: Image.Image, second: Image.Image) -> float:
    """1 minus the correlation of two pictures of `reduced`, at three quarters of the size of the smaller.

    At its full size the resampling of the other would count: on Glyphs that costs half of the recall.

    >>> ramp = Image.linear_gradient("L")
    >>> round(difference(reduced(ramp), reduced(ramp.resize((40, 40)))), 2)
    0.0
    """
    width, height = (max(1, round(0.75 * min(both))) for both in zip(first.size, second.size, strict=True))
    one, other = (
        np.asarray(each.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64).ravel()
        for each in (first, second)
    )
    one, other = one - one.mean(), other - other.mean()
    norms = np.sqrt((one @ one) * (other @ other))
    return max(0.0, 1 - float(one @ other / norms)) if norms > 0 else 1.0


def _cosines() -> Float32[np.ndarray, "frequencies places"]:
    """The orthonormal discrete cosine transform, DCT-II, as a matrix."""
    frequencies, places = np.arange(_LIGHT)[:, None], np.arange(_SIDE)
    matrix = np.cos(np.pi * frequencies * (2 * places + 1) / (2 * _SIDE)) * np.sqrt(2 / _SIDE)
    matrix[0] /= np.sqrt(2)
    return matrix.astype(np.float32)


_COSINES = _cosines()
_SIGNS = [np.tile((-1.0) ** np.arange(count), count) for count in (_LIGHT, _COLOUR, _COLOUR)]
_MIRROR = np.concatenate([_SIGNS[0][1:], *_SIGNS[1:]]).astype(np.float32)


def _lowest(plane: Float32[np.ndarray, "height width"], count: int) -> Float32[np.ndarray, "rows columns"]:
    return _COSINES[:count] @ plane @ _COSINES[:count].T

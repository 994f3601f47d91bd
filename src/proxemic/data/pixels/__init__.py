"""Pixel stores: where the images of a set lie until they are needed, and how one is read, cached or corrupted.

`Pixels` is a sequence of PIL images: `FilePixels` opens files, `ArrayPixels` holds arrays, `CorruptedPixels` applies a
`Corruption`. `read_image` prepares one image exactly as training and evaluation see it, and `cache_images` decodes and
shrinks the files of a whole set once.
"""

from proxemic.data.pixels.base import ArrayPixels, FilePixels, Pixels
from proxemic.data.pixels.reading import Picture, UnreadableImageError, read_image

__all__ = ["ArrayPixels", "FilePixels", "Picture", "Pixels", "UnreadableImageError", "read_image"]

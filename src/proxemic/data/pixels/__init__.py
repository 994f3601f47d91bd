"""Pixel stores: where the images of a set lie until they are needed, and how one image is read.

`Pixels` is a sequence of PIL images: `FilePixels` opens files, `ArrayPixels` holds arrays, `CachedPixels` reads what
was decoded before. `read_image` prepares one image exactly as training and evaluation see it.
"""

from proxemic.data.pixels.reading import ImageInput, UnreadableImageError, read_image
from proxemic.data.pixels.stores import ArrayPixels, CachedPixels, FilePixels, PixelFile, Pixels, write_pixels

__all__ = [
    "ArrayPixels",
    "CachedPixels",
    "FilePixels",
    "ImageInput",
    "PixelFile",
    "Pixels",
    "UnreadableImageError",
    "read_image",
    "write_pixels",
]

"""Pixel stores: where the images of a set lie until they are needed, how one is read, cached or corrupted."""

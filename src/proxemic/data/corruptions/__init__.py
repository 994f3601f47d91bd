r"""Nine corruptions of images, each in five severities, for measuring how robust embeddings are.

| corruption | severity sets | 1 | 2 | 3 | 4 | 5 |
|---|---|---|---|---|---|---|
| gaussian-noise | standard deviation, as a part of white | 0.02 | 0.04 | 0.06 | 0.10 | 0.15 |
| uniform-noise | largest change either way, as a part of white | 0.03 | 0.05 | 0.08 | 0.13 | 0.20 |
| salt-and-pepper | share of pixels set to white or black | 0.01 | 0.02 | 0.03 | 0.06 | 0.10 |
| dropout | share of pixels set to black | 0.01 | 0.03 | 0.05 | 0.10 | 0.20 |
| cutout | side of a mid-grey square, of the shorter side | 0.10 | 0.15 | 0.20 | 0.30 | 0.40 |
| shear | horizontal shear to the left or right, degrees | 10 | 20 | 30 | 40 | 50 |
| jigsaw | swaps of neighbours among 6 × 6 tiles | 4 | 9 | 18 | 36 | 72 |
| hue-and-saturation | change of both, either way, of a turn and of full | 0.05 | 0.10 | 0.16 | 0.25 | 0.40 |
| defocus-blur | radius of the disk, in 224ths of the shorter side | 3 | 4 | 6 | 8 | 10 |

The warping paper used imgaug with mostly its defaults, which draw the strength for each image. Severity 3 is the
strongest that imgaug draws by default; for jigsaw, which it does with 3 to 10 tiles a side, and for defocus blur,
whose severities are the same five, the middle. Noise, salt and pepper, and dropout hit all channels of a pixel alike,
as there. The draws do not depend on the severity: a pixel that is dropped is also dropped at the next severity.
"""

from proxemic.data.corruptions.corrupted_pixels import CORRUPTIONS, SEVERITIES, CorruptedPixels, Corruption

__all__ = ["CORRUPTIONS", "SEVERITIES", "CorruptedPixels", "Corruption"]

"""The sets of pairs that faces are verified on, in a folder as insightface hands them out."""

from dataclasses import dataclass
from pathlib import Path

from proxemic.data.faces.packs import read_face_pack
from proxemic.data.faces.pairs import FacePairs, read_lfw_pairs

_SUFFIXES = (".jpg", ".jpeg", ".png")  # of LFW's own images, and of what aligners write
PAGE = "https://github.com/deepinsight/insightface/wiki/Dataset-Zoo"


@dataclass(frozen=True)
class VerificationSet:
    """A published set of pairs, in ten folds."""

    title: str
    pairs: int


VERIFICATION_SETS = {
    "lfw": VerificationSet("LFW", 6000),
    "cfp_fp": VerificationSet("CFP-FP", 7000),
    "agedb_30": VerificationSet("AgeDB-30", 6000),
    "calfw": VerificationSet("CALFW", 6000),
    "cplfw": VerificationSet("CPLFW", 6000),
}
"""The sets by name, in the order of the papers' tables; a pack is the file `NAME.bin`."""


def read_verification_set(name: str, folder: str | Path) -> tuple[FacePairs, tuple[str, ...]]:
    """Read a published set of pairs from its pack or, for LFW, from its images and its list of pairs.

    Args:
        name: One of `VERIFICATION_SETS`.
        folder: Holds `NAME.bin`, or for LFW `pairs.txt` and the images of a person in `lfw/PERSON`, all of which end in
            .jpg, in .jpeg or in .png.

    Raises:
        ValueError: If there is no set of that name, it is not in the folder, or it is damaged or refused.

    Example:
        >>> read_verification_set("lfw", "faces_emore")
        Traceback (most recent call last):
            ...
        ValueError: lfw is not in faces_emore: there is no lfw.bin, and no pairs.txt with a folder lfw of images; ...
    """
    if name not in VERIFICATION_SETS:
        raise ValueError(f"{name!r} is no set of pairs that is known here: give {', '.join(VERIFICATION_SETS)}.")
    folder = Path(folder)
    pack, pairs_list, images = folder / f"{name}.bin", folder / "pairs.txt", folder / "lfw"
    if pack.exists():
        source, pairs = pack, read_face_pack(pack)
    elif name == "lfw" and pairs_list.exists() and images.is_dir():
        suffix = next((ending for ending in _SUFFIXES if any(images.glob(f"*/*_0001{ending}"))), _SUFFIXES[0])
        source, pairs = pairs_list, read_lfw_pairs(pairs_list, images, suffix=suffix)
    else:
        other = ", and no pairs.txt with a folder lfw of images" if name == "lfw" else ""
        raise ValueError(
            f"{name} is not in {folder}: there is no {pack.name}{other}; the packs come with the training sets of "
            f"{PAGE}."
        )
    published = VERIFICATION_SETS[name]
    if len(pairs) == published.pairs:
        return pairs, ()
    return pairs, (
        f"{source} has {len(pairs):,} pairs, but {published.title} was published with {published.pairs:,}: its figures "
        "are not comparable.",
    )

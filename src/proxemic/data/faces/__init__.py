"""Faces: training sets and the pairs that models are verified on.

`RecordFaces` and `FaceFolders` are sources to train on: insightface's record files, and one folder of images per
identity. `read_verification_set`, `read_face_pack` and `read_lfw_pairs` give the `FacePairs` of published sets, without
trusting the pickles that some of them are handed out as, and `read_own_pairs` those of a table of your own.
"""

from proxemic.data.faces.own_pairs import read_own_pairs
from proxemic.data.faces.packs import VERIFICATION_SETS, VerificationSet, read_face_pack, read_verification_set
from proxemic.data.faces.pairs import FacePairs, read_lfw_pairs
from proxemic.data.faces.sources import FaceFolders, RecordFaces

__all__ = [
    "VERIFICATION_SETS",
    "FaceFolders",
    "FacePairs",
    "RecordFaces",
    "VerificationSet",
    "read_face_pack",
    "read_lfw_pairs",
    "read_own_pairs",
    "read_verification_set",
]

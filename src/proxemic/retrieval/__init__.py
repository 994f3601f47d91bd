"""Using an embedding: pictures become vectors, which are kept in galleries and searched.

`Embedder` turns pictures into vectors; `Gallery` keeps them with what is known of them, in one of the `stores`: a
folder, PostgreSQL or Milvus.
"""

from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from proxemic.retrieval.bulk import EmbeddedFile, embed_to_file
    from proxemic.retrieval.calibration import CalibratedThreshold, Calibration, calibrate
    from proxemic.retrieval.cleaning import Cleaning, clean
    from proxemic.retrieval.embedder import Embedder
    from proxemic.retrieval.embedding import Embedded, embed_pictures
    from proxemic.retrieval.gallery import Added, Gallery, Hit
    from proxemic.retrieval.pictures import Pictures, list_pictures
    from proxemic.retrieval.stores import GalleryInfo, Neighbours

__all__ = [
    "Added",
    "CalibratedThreshold",
    "Calibration",
    "Cleaning",
    "Embedded",
    "EmbeddedFile",
    "Embedder",
    "Gallery",
    "GalleryInfo",
    "Hit",
    "Neighbours",
    "Pictures",
    "calibrate",
    "clean",
    "embed_pictures",
    "embed_to_file",
    "list_pictures",
]

"""Use a trained embedding: embed images, store them in galleries, search, recognise, clean and export.

`Embedder` turns images into vectors; `Gallery` stores them with their metadata in a folder, PostgreSQL or Milvus.
"""

from typing import TYPE_CHECKING

from proxemic.extras import optional_dependency
from proxemic.lazy import lazy_names

with optional_dependency("train"):  # so that without the extra each module below is one sentence
    import PIL  # noqa: F401
    import platformdirs  # noqa: F401
    import pyarrow  # noqa: F401

if TYPE_CHECKING:
    from proxemic.data.rows import Rows as Pictures
    from proxemic.data.sources.listing import list_pictures
    from proxemic.retrieval.curation import Cleaning, clean
    from proxemic.retrieval.curation.clustering import Clusters, cluster
    from proxemic.retrieval.exporting import Exported, export
    from proxemic.retrieval.galleries.adding import Added
    from proxemic.retrieval.galleries.backup import export_gallery, import_gallery
    from proxemic.retrieval.galleries.folders import open_gallery
    from proxemic.retrieval.galleries.gallery import Gallery
    from proxemic.retrieval.galleries.hits import Hit, Recognition
    from proxemic.retrieval.galleries.stores import GalleryInfo, Neighbours
    from proxemic.retrieval.galleries.summary import GallerySummary, summarize_store
    from proxemic.retrieval.improving.improved_gallery import ImprovedGallery, improve_gallery, relabel, suggest_labels
    from proxemic.retrieval.improving.improvement import Improvement, improve, trained_head, whitened_head
    from proxemic.retrieval.searching.calibration import calibrate
    from proxemic.retrieval.searching.contact_sheet import write_contact_sheet
    from proxemic.retrieval.searching.explaining import Explanation, explain_similarity
    from proxemic.retrieval.searching.recognition import Recognitions, recognize
    from proxemic.retrieval.searching.search import Answer, SearchResult, search_gallery
    from proxemic.retrieval.searching.thresholds import Calibration
    from proxemic.retrieval.vectors.bulk import EmbeddedFile, embed_to_file
    from proxemic.retrieval.vectors.embedded import Embedded
    from proxemic.retrieval.vectors.embedder import Embedder
    from proxemic.retrieval.vectors.embedding import embed_pictures
    from proxemic.retrieval.vectors.ray_stage import EmbedStage

__all__ = [
    "Added",
    "Answer",
    "Calibration",
    "Cleaning",
    "Clusters",
    "EmbedStage",
    "Embedded",
    "EmbeddedFile",
    "Embedder",
    "Explanation",
    "Exported",
    "Gallery",
    "GalleryInfo",
    "GallerySummary",
    "Hit",
    "ImprovedGallery",
    "Improvement",
    "Neighbours",
    "Pictures",
    "Recognition",
    "Recognitions",
    "SearchResult",
    "calibrate",
    "clean",
    "cluster",
    "embed_pictures",
    "embed_to_file",
    "explain_similarity",
    "export",
    "export_gallery",
    "import_gallery",
    "improve",
    "improve_gallery",
    "list_pictures",
    "open_gallery",
    "recognize",
    "relabel",
    "search_gallery",
    "suggest_labels",
    "summarize_store",
    "trained_head",
    "whitened_head",
    "write_contact_sheet",
]

__getattr__, __dir__ = lazy_names(__name__)

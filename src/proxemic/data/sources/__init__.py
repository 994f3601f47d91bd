"""Image sources that need no download: the user's own folders and tables, glyphs, digits, and folds of any source.

`check` reports the content and flaws of a folder or table. `load_query_gallery` and `join_query_gallery`
join queries and a gallery from two places.
"""

from typing import TYPE_CHECKING

from proxemic.lazy import lazy_names

if TYPE_CHECKING:
    from proxemic.data.sources.checking import DatasetReport, check
    from proxemic.data.sources.digits import Digits
    from proxemic.data.sources.folds import Fold
    from proxemic.data.sources.glyphs import GlyphLetters, Glyphs
    from proxemic.data.sources.hugging_face import HuggingFaceDataset
    from proxemic.data.sources.image_folder import OwnImages
    from proxemic.data.sources.own_source import OwnSource
    from proxemic.data.sources.own_vectors import OwnVectors
    from proxemic.data.sources.query_gallery import join_query_gallery, load_query_gallery

__all__ = [
    "DatasetReport",
    "Digits",
    "Fold",
    "GlyphLetters",
    "Glyphs",
    "HuggingFaceDataset",
    "OwnImages",
    "OwnSource",
    "OwnVectors",
    "check",
    "join_query_gallery",
    "load_query_gallery",
]

__getattr__, __dir__ = lazy_names(__name__)

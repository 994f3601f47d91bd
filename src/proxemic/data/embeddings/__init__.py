"""Files of embeddings, ours and those made elsewhere, with what is known of their rows.

`read_embeddings` and `write_embeddings` take safetensors, Parquet and .npy files; `LabelledEmbeddings` is what they
hold, and `RowLabels` the classes, names, and query and gallery flags of the rows. Nothing is ever unpickled.
"""

from proxemic.data.embeddings.files import (
    LabelledEmbeddings,
    open_rows,
    read_embeddings,
    read_labels,
    write_embeddings,
)
from proxemic.data.embeddings.formats import check_embedding_name
from proxemic.data.rows import RowLabels, number_labels

__all__ = [
    "LabelledEmbeddings",
    "RowLabels",
    "check_embedding_name",
    "number_labels",
    "open_rows",
    "read_embeddings",
    "read_labels",
    "write_embeddings",
]

"""Join a network and a head over its features into one model, and keep it in the folder of a gallery."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from proxemic.lazy import torch
from proxemic.models.description import read_checksum
from proxemic.retrieval.galleries.stores import GalleryInfo, Store, create_whole_store
from proxemic.retrieval.galleries.stores.store import OWN_MODEL
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.networks import Outputs
from proxemic.runs.library_preprocessing import AnyPreprocessing

if TYPE_CHECKING:
    from proxemic.models import EmbeddingModel

ENOUGH_TO_WHITEN = 500
"""With this many images or more, whitening is kept unless it surely loses: few labels say little about it."""
Network = tuple["EmbeddingModel", AnyPreprocessing]
"""A network without a head, and how its images are prepared."""


def with_head(model: "EmbeddingModel", head: "EmbeddingModel") -> "EmbeddingModel":
    """Join a network without a head and a head over its features into one model.

    Raises:
        ValueError: If the network has a head, or its features are not those of the head.
    """
    from proxemic.models import EmbeddingModel

    if model.config.head != "none" or model.backbone.num_features != head.config.input_size:
        raise ValueError(
            f"the model has head {model.config.head!r} and {model.backbone.num_features} features, but must have none "
            f"and {head.config.input_size}"
        )
    size = head.config.embedding_size
    joined = EmbeddingModel(
        replace(
            model.config,
            head="linear",
            embedding_size=size,
            unit_features=True,
            normalize=True,
            train="head",
            pretrained=False,
        ),
        model.backbone,
    )
    joined.head.load_state_dict(head.head.state_dict())
    return joined.eval()


def take_apart(embedder: Embedder) -> tuple[Embedder | None, Callable[[Outputs], Outputs]]:
    """Split a model into the embedder of its features (None if it takes vectors) and its head."""
    if embedder.takes_vectors:

        def head(features: Outputs) -> Outputs:
            with torch.no_grad():
                return embedder.model(torch.from_numpy(features)).numpy()

        return None, head
    assert embedder.head is not None
    return embedder.source, embedder.head


@contextmanager
def create_with_head(
    target: Path,
    head: "EmbeddingModel",
    kept: str,
    network: Network | None,
    precision: str | None,
    features_by: str | None = None,
) -> Iterator[Store]:
    """Create a gallery that stores features next to its vectors, with its model in the same folder.

    The folder appears when the block ends without an error. `kept` says how the head was made, as `Improvement.kept`
    does. Without a network, the model is the head alone. `features_by` is the checksum of the network.
    """
    from proxemic.models import save_model

    model = head if network is None else with_head(network[0], head)
    with TemporaryDirectory() as folder:
        described = {} if network is None else network[1].as_dict()
        save_model(Path(folder), model, described, features_by=features_by)
        size, made_by = head.config.embedding_size, read_checksum(Path(folder))
        info = GalleryInfo(size, "cosine", made_by, OWN_MODEL, precision, head.backbone.num_features, kept)
        with create_whole_store(str(target), info) as store:
            copytree(folder, store.address, dirs_exist_ok=True)
            yield store

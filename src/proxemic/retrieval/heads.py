"""A network and a head over its features: as one model, which lies in the folder of the gallery that it fills."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from proxemic.data import Preprocessing
from proxemic.files import working_folder
from proxemic.models import EmbeddingModel, ModelConfig, build_model, read_checksum, save_model
from proxemic.models.model import without_head
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.stores import GalleryInfo, Store, create_store
from proxemic.retrieval.stores.store import OWN_MODEL

Network = tuple[EmbeddingModel, Preprocessing]
"""A network without a head, and how its pictures are prepared."""


def with_head(model: EmbeddingModel, head: EmbeddingModel) -> EmbeddingModel:
    """Join a network without a head and a head over its features to one model.

    Raises:
        ValueError: If the network has a head, or its features are not those of the head.
    """
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


def take_apart(embedder: Embedder) -> tuple[Embedder | None, EmbeddingModel]:
    """Return what makes the features that a model's head takes, None if it takes vectors, and the head alone."""
    model = embedder.model
    assert isinstance(model, EmbeddingModel)
    if model.config.takes_vectors:
        return None, model
    head = build_model(
        ModelConfig(
            "none",
            embedding_size=model.config.embedding_size,
            input_size=model.backbone.num_features,
            unit_features=model.config.unit_features,
        )
    )
    head.head.load_state_dict(model.head.state_dict())
    network = Embedder(without_head(model), embedder.transform, path=embedder.path, precision=embedder.precision)
    return network, head.eval()


@contextmanager
def create_with_head(
    target: Path, head: EmbeddingModel, network: Network | None, precision: str | None
) -> Iterator[Store]:
    """Make a gallery, and its model beside it, in a folder that is there when the block is done.

    The gallery keeps features beside its vectors. Without a network, the model is the head alone.
    """
    model = head if network is None else with_head(network[0], head)
    with working_folder(target) as folder:
        save_model(folder / "made", model, {} if network is None else network[1].as_dict())
        size, made_by = head.config.embedding_size, read_checksum(folder / "made")
        info = GalleryInfo(size, "cosine", made_by, OWN_MODEL, precision, features=head.backbone.num_features)
        store = create_store(str(folder / "gallery"), info)
        yield store
        store.close()
        for file in (folder / "gallery").iterdir():
            file.rename(folder / "made" / file.name)
        if target.is_dir():
            target.rmdir()
        (folder / "made").rename(target)

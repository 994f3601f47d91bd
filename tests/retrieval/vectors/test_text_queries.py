"""Searching pictures by words, with networks that have a text tower: the real classes of transformers, but tiny."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from command_line import Here, assert_refused
from images import write_folder
from proxemic.errors import UserError
from proxemic.models import ModelConfig
from proxemic.models.backbones.text_towers import parse_tokenizer, tokenize
from proxemic.models.backbones.transformers_models import transformers_backbone
from proxemic.retrieval import Embedder, Gallery, improve_gallery, search_gallery
from proxemic.retrieval.improving.improvement import Improvement, whitened_head
from towers import LENGTH, SIDE, WORDS, write_towers

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]
TEXTS = ["a red car", "blue hat", "hat " * 3 * LENGTH]


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with photos, networks and the networks' cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("towers")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        write_folder(folder / "photos", classes=6, images=8, size=SIDE)
        for kind in ("clip", "siglip"):
            write_towers(folder / kind, kind)
        yield folder


@pytest.fixture(scope="module")
def shop(root: Path) -> Path:
    Gallery.create(root / "shop", f"hf:{root / 'clip'}", root / "photos")
    return root / "shop"


def features(folder: Path, texts: list[str]) -> torch.Tensor:
    """Compute the network's own features of texts in float64, from tokens made by hand."""
    import transformers

    numbers = [[WORDS.index(word) for word in text.split()][: LENGTH - 2] for text in texts]
    tokens = torch.tensor([[1, *row, 2] + [0] * (LENGTH - 2 - len(row)) for row in numbers])
    network = transformers.AutoModel.from_pretrained(folder).eval().double()
    with torch.no_grad():
        return network.get_text_features(tokens).pooler_output


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_texts_and_pictures_are_embedded_as_the_network_does(root: Path, kind: str) -> None:
    import transformers

    embedder = Embedder.load(f"hf:{root / kind}")
    assert embedder.takes_texts
    torch.testing.assert_close(
        embedder.embed_texts(TEXTS, batch_size=2).double(), normalize(features(root / kind, TEXTS)), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(embedder.embed_texts(TEXTS[0]), embedder.embed_texts(TEXTS)[:1])
    images = torch.rand(2, 3, SIDE, SIDE)
    network = transformers.AutoModel.from_pretrained(root / kind).eval()
    with torch.no_grad():
        expected = normalize(network.get_image_features(images).pooler_output)
    torch.testing.assert_close(embedder.embed(images), expected)


def test_a_gallery_is_searched_by_words(root: Path, shop: Path) -> None:
    gallery = Gallery.open(shop)
    vectors, items = next(gallery.store.iterate())
    query = normalize(features(root / "clip", TEXTS)).numpy()
    order = (1 - query @ vectors.astype(np.float64).T).argsort(1)[:, :3]
    paths = items["path"].to_pylist()
    found = gallery.search(text=TEXTS, k=3)
    assert [[hit.path for hit in hits] for hits in found] == [[paths[row] for row in rows] for rows in order.tolist()]
    both = search_gallery(gallery, paths[5], text="blue hat", k=3)
    assert [answer.query for answer in both.answers] == [paths[5], "blue hat"]
    assert both.answers[0].hits[0].path == paths[5]
    assert [*both.answers[1].hits] == found[1]
    assert str(root / "photos") in both.roots


def test_the_command_takes_words(shop: Path, here: Here) -> None:
    result = here("search", shop, "--text", "a red car", "--text", "blue hat", "-k", "2", "--format", "json")
    assert result.returncode == 0, result.stderr
    answers = Gallery.open(shop).search(text=["a red car", "blue hat"], k=2)
    for found, text, hits in zip(json.loads(result.stdout), ("a red car", "blue hat"), answers, strict=True):
        assert (found["query"], [hit["id"] for hit in found["hits"]]) == (text, [hit.id for hit in hits])
    assert_refused(here("search", shop), "give photos, files of vectors, or texts (--text)")
    assert_refused(here("search", shop, "--text", " "), "a text is empty")


def test_an_improved_gallery_maps_texts_as_it_maps_pictures(
    root: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = torch.from_numpy(np.array(next(Gallery.open(shop).store.iterate())[0]))
    head = whitened_head(vectors, 6)
    kept = Improvement(head, "whitened", {}, {}, per_class=8)
    monkeypatch.setattr("proxemic.retrieval.improving.improved_gallery.improve", lambda *_, **__: kept)  # takes seconds
    improve_gallery(shop, root / "better")
    with torch.no_grad():
        expected = head(features(root / "clip", TEXTS).float())
    embedder = Embedder.load(root / "better")
    torch.testing.assert_close(embedder.embed_texts(TEXTS), expected, atol=1e-5, rtol=0)
    assert Gallery.open(root / "better").search(text=TEXTS, k=1)


def test_models_without_a_text_tower_say_what_to_take(shelf: Path, here: Here) -> None:
    refused = here("search", shelf / "shop", "--text", "a red car")
    assert_refused(refused, "embeds no texts: take a model with a text tower, such as hf:openai/clip-vit-base-patch32")
    embedder = Embedder(torch.nn.Flatten(), lambda _: torch.zeros(3, 2, 2))
    assert not embedder.takes_texts
    with pytest.raises(UserError, match="The model embeds no texts"):
        embedder.embed_texts("a red car")


def test_a_folder_without_a_tokenizer_takes_pictures_alone(root: Path) -> None:
    folder = write_towers(root / "mute")
    (folder / "tokenizer.json").unlink()
    embedder = Embedder.load(f"hf:{folder}")
    assert embedder.embed(torch.zeros(1, 3, SIDE, SIDE)).shape == (1, 12)
    with pytest.raises(UserError, match=r"has no tokenizer\.json: fetch it"):
        embedder.embed_texts("a red car")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        Embedder.load(f"hf:{folder}")


def test_texts_for_siglip_are_prepared_as_its_own_code_does(root: Path) -> None:
    embedder = Embedder.load(f"hf:{write_towers(root / 'own', 'siglip', tokenizer_class='SiglipTokenizer')}")
    expected = Embedder.load(f"hf:{root / 'siglip'}").embed_texts(["a red car"])
    torch.testing.assert_close(embedder.embed_texts([" A, Red\n  (car)! "]), expected)


@pytest.mark.parametrize("saved", ["Siglip2Tokenizer", "CLIPTokenizer"])
def test_texts_are_tokenised_as_the_processor_of_the_folder_does(root: Path, saved: str) -> None:
    import transformers

    folder = write_towers(root / saved, "siglip" if saved == "Siglip2Tokenizer" else "clip")
    kind = getattr(transformers, saved)
    letters = [chr(code) for code in range(97, 123)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if saved == "Siglip2Tokenizer" else ["<|endoftext|>"]
    pieces = [*special, "▁", *letters, *(f"{letter}</w>" for letter in letters), "ca", "car"]
    merges = [("c", "a"), ("ca", "r")]
    kind(vocab={piece: place for place, piece in enumerate(pieces)}, merges=merges).save_pretrained(folder)
    if saved == "Siglip2Tokenizer":  # the files of the hub do not have what the class adds
        content = json.loads((folder / "tokenizer.json").read_text())
        content["normalizer"] = content["normalizer"]["normalizers"][-1]
        (folder / "tokenizer.json").write_text(json.dumps(content))
    processor = transformers.AutoProcessor.from_pretrained(folder)
    texts = ["A Red CAR", "a red car", " two   lines,\nand more than eight tokens", "é"]
    expected = processor.tokenizer(
        texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
    ).input_ids
    backbone = transformers_backbone(ModelConfig(f"hf:{folder}", pooling="joint", pretrained=True))
    assert backbone.tokenizer is not None
    found = tokenize(parse_tokenizer(backbone.tokenizer), texts)
    assert found.tolist() == expected.tolist()
    assert found[0].tolist() == found[1].tolist()
    assert len({*map(tuple, found.tolist())}) == 3

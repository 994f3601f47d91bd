"""Photos, a model and a gallery of them, made in a second: the network is not trained, but tells colours apart."""

from pathlib import Path

import torch

from images import write_folder
from proxemic.data import Preprocessing
from proxemic.models import ModelConfig, build_model, save_model
from proxemic.retrieval import Gallery

SIZE, DIM, CLASSES, EACH = 16, 6, 7, 4


def write_model(folder: Path, seed: int = 0, dim: int = DIM) -> Path:
    generator = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = build_model(ModelConfig("convnet", dim, width=8, image_size=SIZE)).eval()
    save_model(folder, model, vars(Preprocessing(size=SIZE, resize=None)))
    torch.random.set_rng_state(generator)
    return folder


def write_shelf(folder: Path) -> Path:
    write_folder(folder / "photos", classes=CLASSES, images=EACH, size=SIZE)
    Gallery.create(folder / "shop", write_model(folder / "model"), folder / "photos")
    return folder

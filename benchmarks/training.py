"""Measure images per second of training and embedding, beside a plain PyTorch loop and the best loop we can write.

    python benchmarks/training.py                                  # training; some minutes a network on two cores
    python benchmarks/training.py --evaluation                     # embedding images
    python benchmarks/training.py --photos FOLDER                  # the recipe own-pretrained on class folders
    python benchmarks/training.py --networks convnet --smoke       # seconds

All loops of a network read the same images (smooth noise as JPEG files, decoded once into proxemic's cache), apply the
same transforms, and compute the same loss. *Plain* is a loop as in tutorials; *best* has everything that is known to
help, in float32 and in bfloat16. With ``--photos``, a folder of class folders or a table, both loops have the network
of the recipe, without pretrained weights, its loss, decoding, augmentation and clipping, and there is no plain loop.
Each loop has its own process, and the processes take some steps in turn. Figures are from the median time of a step;
``--processor-time`` counts processor time, for a machine with other work. ``--side`` is the side of the images in
pixels, ``--steps`` the number of steps per turn, and ``--workers`` the number of processes that load images for each
loop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from measure import command, print_header, print_row, write_photographs
from paced import Pace, alternate
from proxemic import keep_freed_memory, train
from proxemic.data import EmbeddingDataset
from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.models import ConvNet, ModelConfig, build_model
from proxemic.recipes import load
from proxemic.runs.embed import embed_images
from proxemic.training import Recipe
from proxemic.training.components import build_networks

NETWORKS = {"tf_efficientnet_lite0": 32, "resnet50": 32, "convnet": 128}
"""Networks with their batch sizes."""
CLASSES, PICTURES, EMBEDDING = 8, 128, 128


@dataclass(frozen=True)
class Setting:
    """A network and its images."""

    network: str
    folder: Path
    side: int
    batch: int
    threads: int
    workers: int
    device: str = "cpu"
    photos: Path | None = None

    def begin(self, *, keep: bool = True) -> None:
        """Set threads and seed of this process, and whether it keeps freed memory as the commands do."""
        if keep:
            keep_freed_memory()
        torch.set_num_threads(self.threads)
        torch.manual_seed(0)

    def recipe(self, precision: str = "32-true") -> Recipe:
        """Return the recipe for `proxemic train`."""
        values: dict[str, Any] = {
            "data.root": str(self.photos or self.folder / "images"),
            "data.test_fraction": 0,
            "data.validation_fraction": 0,
            "cache.folder": str(self.folder / "cache"),
            "batches.size": self.batch,
            "batches.workers": self.workers,
            "training.epochs": 10_000,
            "training.precision": precision,
            "training.checkpoint_minutes": 1e6,
            "training.accelerator": self.device,
            "training.callbacks": [{"class_path": "paced.Paced"}],
            "evaluation.select_on": "last",
            "evaluation.batch_size": self.batch,
        }
        if self.photos is not None:
            untrained = {"model.pretrained": False, "model.head_init": None, "training.start_proxies": "drawn"}
            return load("own-pretrained", **values, **untrained)
        values |= {
            "cache.shorter_side": max(self.side, self.side * 8 // 7 // 8 * 8),  # what the images are resized to
            "images.size": self.side,
            "model.backbone": self.network,
            "loss": "NormalizedSoftmaxLoss",
        }
        return load("own", **values)

    def loader(self, *, training: bool) -> DataLoader[Any]:
        """Load the same images with the same transforms."""
        recipe = self.recipe()
        transform = recipe.augment.training(recipe.images) if training else recipe.images.evaluation()
        data = EmbeddingDataset(recipe.load().train, transform)
        return DataLoader(data, self.batch, shuffle=training, num_workers=self.workers, drop_last=True)


class PlainNetwork(nn.Module):
    """A plain network of timm, or the ConvNet, with a linear layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import timm

        self.backbone = ConvNet(3) if name == "convnet" else timm.create_model(name, num_classes=0, global_pool="")
        self.head = nn.Linear(self.backbone.num_features, EMBEDDING)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        return normalize(self.head(self.backbone(images).mean((2, 3))), dim=1)


def write_images(folder: Path, count: int, side: int) -> None:
    """Write class folders of smooth noise with at most `PICTURES` different pictures."""
    (folder / "pictures").mkdir()
    pictures = write_photographs(folder / "pictures", min(count, PICTURES), (side * 3 // 2, side * 9 // 8))
    for number in range(CLASSES):
        (folder / "images" / str(number)).mkdir(parents=True)
    for number in range(count):
        (folder / "images" / str(number % CLASSES) / f"{number}.jpg").hardlink_to(pictures[number % len(pictures)])


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def train_ours(setting: Setting, precision: str, pace: Pace) -> NoReturn:
    """Train as ``proxemic train``."""
    setting.begin()
    with TemporaryDirectory(dir=setting.folder) as folder:
        train(setting.recipe(precision), Path(folder) / "run", threads=setting.threads, progress=False, test=False)
    raise AssertionError("the training ended before its steps were counted")


def train_loop(setting: Setting, best: bool, half: bool, pace: Pace) -> NoReturn:
    """Train in a bare loop: plain, as in tutorials, or with everything that is known to help."""
    setting.begin(keep=best)
    layout = torch.channels_last if best else torch.contiguous_format
    network: nn.Module
    if setting.photos is None:
        network, loss = PlainNetwork(setting.network), NormalizedSoftmaxLoss(CLASSES, EMBEDDING)
        network.to(memory_format=layout)  # type: ignore[call-overload]
    else:
        recipe = setting.recipe()
        network, loss = build_networks(recipe, recipe.load())
    parameters = [*network.parameters(), *loss.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=best)
    for images, labels in forever(setting.loader(training=True)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            embeddings = network(images.contiguous(memory_format=layout))
        loss(embeddings.float(), labels).backward()
        if setting.photos is not None:
            nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        pace.step()
    raise AssertionError


def embed_ours(setting: Setting, precision: Literal["32-true", "bf16-mixed"], pace: Pace) -> NoReturn:
    """Embed images as ``proxemic evaluate`` does; a step is one batch."""
    setting.begin()
    recipe = setting.recipe()
    model = build_model(ModelConfig(setting.network, EMBEDDING, image_size=setting.side)).eval()
    images = recipe.load().train
    many = images.select(torch.arange(len(images)).repeat(1_000))
    model.register_forward_hook(lambda *_: pace.step())
    embed_images(model, many, recipe.images, batch_size=setting.batch, workers=setting.workers, precision=precision)
    raise AssertionError


def embed_loop(setting: Setting, best: bool, half: bool, pace: Pace) -> NoReturn:
    """Embed batches in a bare loop: plain, or with everything that is known to help."""
    setting.begin(keep=best)
    layout = torch.channels_last if best else torch.contiguous_format
    network = PlainNetwork(setting.network).eval().to(memory_format=layout)  # type: ignore[call-overload]
    with torch.inference_mode(best), torch.no_grad():
        for images, _ in forever(setting.loader(training=False)):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                network(images.contiguous(memory_format=layout))
            pace.step()
    raise AssertionError


TABLES: dict[str, tuple[Callable[..., NoReturn], Callable[..., NoReturn], tuple[str, str], str]] = {
    "training": (train_ours, train_loop, ("auto", "auto"), "auto"),
    "embedding": (embed_ours, embed_loop, ("bf16-mixed", "bfloat16"), "half"),
}
"""Our loop and the bare loop; the faster precision, its column, and its name in ratios."""


def compare_photos(
    photos: Path, batch: int, steps: int, rounds: int, threads: int, workers: int, *, processor_time: bool
) -> None:
    """Print images per second of the recipe own-pretrained, and of the best loop with the same network and images."""
    with TemporaryDirectory() as folder:
        setting = Setting("own-pretrained", Path(folder), 0, batch, threads, workers, photos=photos.absolute())
        count = len(setting.recipe().load().train)  # decodes them for all loops
        loops = {
            "ours": partial(train_ours, setting, "32-true"),
            "ours, auto": partial(train_ours, setting, "auto"),
            "best": partial(train_loop, setting, True, False),
            "best, bfloat16": partial(train_loop, setting, True, True),
        }
        seconds = alternate(loops, steps, rounds, processor_time=processor_time)
    rates = {name: batch / taken for name, taken in seconds.items()}
    print(f"torch {torch.__version__}, {threads} threads, images a second")
    print_header(f"{count:,} photographs", *rates, "ours / best", "auto / best")
    ratios = rates["ours"] / rates["best"], rates["ours, auto"] / max(rates["best"], rates["best, bfloat16"])
    print_row(setting.network, *(f"{rate:.3g}" for rate in rates.values()), *(f"{ratio:.2f}" for ratio in ratios))


def main(
    *,
    networks: Sequence[str] = tuple(NETWORKS),
    evaluation: bool = False,
    photos: Path | None = None,
    side: int = 128,
    batch: int | None = None,
    steps: int = 4,
    rounds: int = 5,
    threads: int = 1,
    workers: int = 0,
    processor_time: bool = False,
    smoke: bool = False,
) -> None:
    """Print images per second for each network, which may be any of timm."""
    side, steps, rounds = (32, 1, 1) if smoke else (side, steps, rounds)
    if photos is not None:
        size = batch or (8 if smoke else 64)
        compare_photos(photos, size, steps, rounds, threads, workers, processor_time=processor_time)
        return
    table = "embedding" if evaluation else "training"
    ours, bare, (precision, column), name = TABLES[table]
    print(f"torch {torch.__version__}, {threads} threads, {side} pixels, images a second")
    columns = ("plain", "ours", f"ours, {column}", "best", "best, bfloat16")
    print_header(table, *columns, "ours / plain", f"{name} / plain", f"{name} / best")
    with TemporaryDirectory() as folder:
        batches = {name: 8 if smoke else batch or NETWORKS.get(name, 32) for name in networks}
        # One long epoch: with short epochs, writing checkpoints would take most of the time.
        write_images(Path(folder), max(batches.values()) * (steps * (rounds + 1) + 2), side)
        for network, images in batches.items():
            setting = Setting(network, Path(folder), side, images, threads, workers)
            loops = {
                "plain": partial(bare, setting, False, False),
                "ours": partial(ours, setting, "32-true"),
                "fast": partial(ours, setting, precision),
                "best": partial(bare, setting, True, False),
                "best, half": partial(bare, setting, True, True),
            }
            seconds = alternate(loops, steps, rounds, processor_time=processor_time)
            rates = plain, mine, fast, *best = [images / taken for taken in seconds.values()]
            ratios = (mine / plain, fast / plain, fast / max(best))
            print_row(network, *(f"{rate:.3g}" for rate in rates), *(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    command(main)

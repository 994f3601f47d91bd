"""Images a second of training, and what a step of it is spent on."""

import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import training
from gpu_stages.machine import state
from gpu_stages.rows import Row, Rows
from gpu_stages.timing import median_milliseconds, release, wait
from paced import Pace, alternate
from proxemic import train
from proxemic.data import EmbeddingDataset
from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.recipes import load
from proxemic.runs.directory import RunDirectory
from proxemic.training import Recipe
from proxemic.training.components import build_networks
from proxemic.training.data_module import TrainingData

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet, of pixels from 0 to 255
WORKERS = 14


def run(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """All rows of the stage."""
    rows.add("state", lambda: state(device))
    rows.add("glyphs: parts of a step", partial(time_parts, device, smoke=smoke))
    rows.add("glyphs: run", partial(train_glyphs, device, smoke=smoke))
    rows.add("photographs", partial(time_photographs, device, smoke=smoke))


def time_photographs(device: torch.device, *, smoke: bool) -> Row:
    """Images a second of `proxemic train` beside the best bare loop, and beside that loop without its data."""
    name, side, batch, steps, rounds = ("convnet", 32, 8, 1, 1) if smoke else ("resnet50", 224, 256, 8, 4)
    release(device)
    with TemporaryDirectory() as folder:
        path = Path(folder)
        training.write_images(path, batch * (steps * (rounds + 1) + 2), side)
        setting = training.Setting(name, path, side, batch, 1, 0 if smoke else WORKERS, device.type)
        loops: dict[str, Callable[[Pace], NoReturn]] = {
            "bf16-mixed": partial(training.train_ours, setting, "bf16-mixed"),
            "best loop": partial(best_loop, setting),
            "best loop, no data": partial(best_loop, setting, with_data=False),
        }
        method = "fork" if smoke else "spawn"
        seconds = alternate(loops, steps, rounds, processor_time=False, method=method)
    return {f"{name}, images/s": batch / each for name, each in seconds.items()}


def best_loop(setting: training.Setting, pace: Pace, *, with_data: bool = True) -> NoReturn:
    """A bare loop with all that is known to help on a GPU; without data, on the first batch again and again.

    Bytes go there from pinned memory and are normalised there; channels_last, bfloat16, a fused optimiser.
    """
    setting.begin()
    torch.backends.cudnn.benchmark = True
    device = torch.device(setting.device)
    network, loss = training.PlainNetwork(setting.network), NormalizedSoftmaxLoss(training.CLASSES, training.EMBEDDING)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    loss.to(device)
    optimizer = torch.optim.AdamW([*network.parameters(), *loss.parameters()], lr=1e-3, fused=True)
    mean, std = (torch.tensor(each, device=device).view(1, 3, 1, 1) for each in (MEAN, STD))
    batches = training.forever(byte_loader(setting))
    kept = next(batches)
    while True:
        pixels, labels = (each.to(device, non_blocking=True) for each in (next(batches) if with_data else kept))
        images = pixels.to(torch.float32, memory_format=torch.channels_last).sub_(mean).div_(std)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            embeddings = network(images)
        loss(embeddings.float(), labels).backward()
        optimizer.step()
        pace.step()


def byte_loader(setting: training.Setting) -> DataLoader[Any]:
    """The same pictures, cropped and flipped, as bytes in pinned memory."""
    transform = v2.Compose([v2.RandomResizedCrop(setting.side), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    return DataLoader(
        EmbeddingDataset(setting.recipe().load().train, transform),
        setting.batch,
        shuffle=True,
        drop_last=True,
        num_workers=setting.workers,
        pin_memory=setting.device == "cuda",
        persistent_workers=setting.workers > 0,
    )


def glyphs(device: torch.device, *, smoke: bool) -> Recipe:
    """The recipe of characters, for this device."""
    values: dict[str, Any] = {"training.accelerator": device.type, "batches.workers": 0 if smoke else WORKERS}
    if smoke:
        values |= {"data.train_classes": 32, "data.test_classes": 16, "batches.size": 16, "training.epochs": 1}
    return load("glyphs-small" if smoke else "glyphs", **values)


def time_parts(device: torch.device, *, smoke: bool) -> Row:
    """Milliseconds of a step of `glyphs`, of its network, loss and optimiser alone, and of a batch of its data."""
    release(device)
    recipe = glyphs(device, smoke=smoke)
    splits = recipe.load()
    model, loss = (each.to(device) for each in build_networks(recipe, splits))
    optimizer, _ = recipe.optim.build(model, loss)  # type: ignore[arg-type]
    loader = TrainingData(splits.train, recipe).train_dataloader()
    images, labels = (each.to(device) for each in next(iter(loader)))
    embeddings = model(images).detach().requires_grad_()
    slope = torch.randn_like(embeddings)

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()

    parts: dict[str, Callable[[int], object]] = {
        "step": lambda _: step(images, labels),
        "network": lambda _: (optimizer.zero_grad(), model(images).backward(slope)),
        "loss": lambda _: (optimizer.zero_grad(), loss(embeddings, labels).backward()),
        "optimizer": lambda _: optimizer.step(),
    }
    row = {f"{name} ms": median_milliseconds(call, device)["ms"] for name, call in parts.items()}
    count = 2 if smoke else 100
    row["data ms"] = time_batches(loader, count, lambda _images, _labels: None, device)
    row["data and step ms"] = time_batches(loader, count, step, device)
    row["images/s"] = 1e3 * recipe.batches.size / row["data and step ms"]
    return row


def time_batches(
    loader: DataLoader[Any], count: int, use: Callable[[Tensor, Tensor], None], device: torch.device
) -> float:
    """Milliseconds of a batch after the first, which the workers have to start for."""
    batches = islice(loader, count + 1)
    next(batches)
    began, seen = time.perf_counter(), 0
    for images, labels in batches:
        use(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        seen += 1
    wait(device)
    return 1e3 * (time.perf_counter() - began) / max(seen, 1)


def train_glyphs(device: torch.device, *, smoke: bool) -> Row:
    """All of `proxemic train glyphs`: its images a second, median epoch, and its Recall@1 on the test characters."""
    release(device)
    recipe = glyphs(device, smoke=smoke)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = train(recipe, out, progress=False, report=lambda _: None)
        history = RunDirectory(out).read_history()
        seconds = sorted(float(row["seconds"]) for row in history)[len(history) // 2]
        steps = float(history[-1]["step"]) / len(history)
    rate = steps * recipe.batches.size / seconds
    return {"images/s": rate, "epochs": len(history), "recall@1": result.metrics["test"]["recall@1"]}

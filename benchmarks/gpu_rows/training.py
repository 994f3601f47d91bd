"""Measure images per second of training beside bare loops, and the time of the retrieval metrics."""

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

import metrics
import training
from gpu_rows.rows import Row, Rows
from gpu_rows.timing import median_milliseconds, release, wait
from measure import medians
from paced import Pace, alternate
from proxemic import train
from proxemic.data import EmbeddingDataset
from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.recipes import load
from proxemic.runs.directory import RunDirectory
from proxemic.training import Recipe
from proxemic.training.components import build_networks
from proxemic.training.data import TrainingData

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet, of pixels from 0 to 255
WORKERS = 14


def add(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """Add all rows."""
    rows.add("glyphs: run", partial(train_glyphs, device, smoke=smoke), 90)
    rows.add("glyphs: parts of a step", partial(time_parts, device, smoke=smoke))
    for loop in ("ours", "best loop", "best loop, no data"):
        rows.add(f"ResNet-50: {loop}", partial(time_photographs, loop, device, smoke=smoke), 60)
    rows.add("metrics", partial(time_metrics, device, smoke=smoke), 60)


def time_photographs(loop: str, device: torch.device, *, smoke: bool) -> Row:
    """Measure images per second of ``proxemic train`` in bfloat16, or of the best bare loop, on few pictures."""
    name, side, batch, steps = ("convnet", 32, 8, 1) if smoke else ("resnet50", 224, 256, 60)
    release(device)
    with TemporaryDirectory() as folder:
        path = Path(folder)
        training.write_images(path, batch * 16, side)
        setting = training.Setting(name, path, side, batch, 1, 0 if smoke else WORKERS, device.type)
        loops: dict[str, Callable[[Pace], NoReturn]] = {
            "ours": partial(training.train_ours, setting, "bf16-mixed"),
            "best loop": partial(best_loop, setting),
            "best loop, no data": partial(best_loop, setting, with_data=False),
        }
        method = "fork" if smoke else "spawn"
        seconds = alternate({loop: loops[loop]}, steps, 1 if smoke else 2, processor_time=False, method=method)
    return {"images/s": batch / seconds[loop]}


def best_loop(setting: training.Setting, pace: Pace, *, with_data: bool = True) -> NoReturn:
    """Train with everything that is known to help on a GPU; without data, repeat the first batch.

    Bytes are copied from pinned memory and normalised on the GPU; channels_last, bfloat16, a fused optimiser.
    """
    setting.begin()
    torch.backends.cudnn.benchmark = True
    device = torch.device(setting.device)
    network, loss = training.PlainNetwork(setting.network), NormalizedSoftmaxLoss(training.CLASSES, training.EMBEDDING)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    loss.to(device)
    optimizer = torch.optim.AdamW([*network.parameters(), *loss.parameters()], lr=1e-3, fused=True)
    mean, std = (torch.tensor(value, device=device).view(1, 3, 1, 1) for value in (MEAN, STD))
    batches = training.forever(byte_loader(setting))
    kept = next(batches)
    while True:
        pixels, labels = (item.to(device, non_blocking=True) for item in (next(batches) if with_data else kept))
        images = pixels.to(torch.float32, memory_format=torch.channels_last).sub_(mean).div_(std)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            embeddings = network(images)
        loss(embeddings.float(), labels).backward()
        optimizer.step()
        pace.step()


def byte_loader(setting: training.Setting) -> DataLoader[Any]:
    """Load the same pictures, cropped and flipped, as bytes in pinned memory."""
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
    """Return the recipe of characters for this device."""
    values: dict[str, Any] = {"training.accelerator": device.type, "batches.workers": 0 if smoke else WORKERS}
    if smoke:
        values |= {"data.train_classes": 32, "data.test_classes": 16, "batches.size": 16, "training.epochs": 1}
    return load("glyphs-small" if smoke else "glyphs", **values)


def time_parts(device: torch.device, *, smoke: bool) -> Row:
    """Time a step of `glyphs`, its network, loss and optimiser by themselves, and a batch of its data."""
    release(device)
    recipe = glyphs(device, smoke=smoke)
    splits = recipe.load()
    model, loss = (network.to(device) for network in build_networks(recipe, splits))
    optimizer, _ = recipe.optim.build(model, loss)  # type: ignore[arg-type]
    loader = TrainingData(splits.train, recipe).loader()
    images, labels = (item.to(device) for item in next(iter(loader)))
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
    for name, use in {"data ms": lambda *_: None, "data and step ms": step}.items():
        batches = islice(loader, count + 1)
        next(batches)  # the workers have to start for it
        began = time.perf_counter()
        for images, labels in batches:
            use(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        wait(device)
        row[name] = 1e3 * (time.perf_counter() - began) / min(count, len(loader) - 1)
    return row | {"images/s": 1e3 * recipe.batches.size / row["data and step ms"]}


def train_glyphs(device: torch.device, *, smoke: bool) -> Row:
    """Run ``proxemic train glyphs``; return images per second of the median epoch, and test Recall@1."""
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


def time_metrics(device: torch.device, *, smoke: bool) -> Row:
    """Time the retrieval metrics at the size of Stanford Online Products, and the bare product of all pairs."""
    release(device)
    points, labels = metrics.embeddings(1_200 if smoke else 60_502, device.type)
    calls: dict[str, Callable[[], object]] = {
        "bare product": partial(metrics.bare, points),
        "metrics": partial(metrics.evaluate, points, labels),
        "with MAP and MRR": partial(metrics.evaluate, points, labels, map=True, mrr=True),
    }
    return {f"{name} s": median for name, median in medians(calls, 3, cuda=device.type == "cuda").items()}

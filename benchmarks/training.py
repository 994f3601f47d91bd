"""Images a second of `proxemic train` and of embedding, beside a plain PyTorch loop and the best one that we can write.

    python benchmarks/training.py                                  # training; some minutes a network on two cores
    python benchmarks/training.py --evaluation                     # embedding images; with --compiled, --onnx
    python benchmarks/training.py --what-helps                     # plain, + mallopt, + channels_last, + bfloat16
    python benchmarks/training.py --networks convnet --smoke       # seconds

All loops of a network read the same images (smooth noise as JPEG files, decoded once into proxemic's cache), crop, flip
and normalise them alike, and compute the same loss. *Plain* is a loop as tutorials have it; *best* has all that is
known to help, in float32 and in bfloat16. Each loop has a process of its own, which takes some steps in its turn. A
figure is of the median time of a step; ``--processor-time`` counts the processor's, on a machine that has other work.
"""

import argparse
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

from loading import write_photographs
from paced import Pace, alternate
from proxemic import keep_freed_memory, train
from proxemic.data import EmbeddingDataset
from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.models import ConvNet, ModelConfig, build_model
from proxemic.recipes import load
from proxemic.runs.embed import embed_images
from proxemic.training import Recipe

NETWORKS = {"tf_efficientnet_lite0": 32, "resnet50": 32, "convnet": 128}
"""Each with its images a batch."""
CLASSES, PICTURES, EMBEDDING = 8, 128, 128


@dataclass(frozen=True)
class Setting:
    """A network and the images it is given."""

    network: str
    folder: Path
    side: int
    batch: int
    threads: int
    workers: int
    device: str = "cpu"

    def begin(self) -> None:
        """Set the number of threads of this process, and its seed."""
        torch.set_num_threads(self.threads)
        torch.manual_seed(0)

    def recipe(self, precision: str = "32-true") -> Recipe:
        """What `proxemic train` is given."""
        values: dict[str, Any] = {
            "data.root": str(self.folder / "images"),
            "data.test_fraction": 0,
            "data.validation_fraction": 0,
            "cache.shorter_side": self.side * 9 // 8,
            "cache.folder": str(self.folder / "cache"),
            "images.size": self.side,
            "batches.size": self.batch,
            "batches.workers": self.workers,
            "model.backbone": self.network,
            "loss": "NormalizedSoftmaxLoss",
            "training.epochs": 10_000,
            "training.precision": precision,
            "training.checkpoint_minutes": 1e6,
            "training.accelerator": self.device,
            "training.callbacks": [{"class_path": "paced.Paced"}],
            "evaluation.select_on": "last",
            "evaluation.batch_size": self.batch,
        }
        return load("own", **values)

    def loader(self, *, training: bool) -> DataLoader[Any]:
        """The same images, prepared in the same way."""
        recipe = self.recipe()
        transform = recipe.augment.training(recipe.images) if training else recipe.images.evaluation()
        data = EmbeddingDataset(recipe.load().train, transform)
        return DataLoader(data, self.batch, shuffle=training, num_workers=self.workers, drop_last=True)


class PlainNetwork(nn.Module):
    """A network of timm, or the ConvNet, and a linear layer, as anyone would write it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import timm

        self.backbone = ConvNet(3) if name == "convnet" else timm.create_model(name, num_classes=0, global_pool="")
        self.head = nn.Linear(self.backbone.num_features, EMBEDDING)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        return normalize(self.head(self.backbone(images).mean((2, 3))), dim=1)


def write_images(folder: Path, count: int, side: int) -> None:
    """Classes of smooth noise; what there is more than `PICTURES` is there several times."""
    (folder / "pictures").mkdir()
    pictures = write_photographs(folder / "pictures", min(count, PICTURES), (side * 3 // 2, side * 9 // 8))
    for number in range(CLASSES):
        (folder / "images" / str(number)).mkdir(parents=True)
    for number in range(count):
        (folder / "images" / str(number % CLASSES) / f"{number}.jpg").hardlink_to(pictures[number % len(pictures)])


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of one epoch after another."""
    while True:
        yield from loader


def train_ours(setting: Setting, precision: str, pace: Pace) -> NoReturn:
    """``proxemic train``."""
    keep_freed_memory()  # as the command does
    setting.begin()
    with TemporaryDirectory(dir=setting.folder) as folder:
        train(setting.recipe(precision), Path(folder) / "run", threads=setting.threads, progress=False, test=False)
    raise AssertionError("the training ended, of which the steps were to be counted")


def train_plain(setting: Setting, pace: Pace) -> NoReturn:
    """A loop as tutorials have it."""
    setting.begin()
    network, loss = PlainNetwork(setting.network), NormalizedSoftmaxLoss(CLASSES, EMBEDDING)
    optimizer = torch.optim.AdamW([*network.parameters(), *loss.parameters()], lr=1e-3)
    for images, labels in forever(setting.loader(training=True)):
        optimizer.zero_grad()
        loss(network(images), labels).backward()
        optimizer.step()
        pace.step()
    raise AssertionError


def train_best(setting: Setting, half: bool, pace: Pace) -> NoReturn:
    """The same with all that is known to help."""
    keep_freed_memory()
    setting.begin()
    network, loss = PlainNetwork(setting.network), NormalizedSoftmaxLoss(CLASSES, EMBEDDING)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW([*network.parameters(), *loss.parameters()], lr=1e-3, fused=True)
    for images, labels in forever(setting.loader(training=True)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            embeddings = network(images.contiguous(memory_format=torch.channels_last))
        loss(embeddings.float(), labels).backward()
        optimizer.step()
        pace.step()
    raise AssertionError


def embed_ours(setting: Setting, precision: Literal["32-true", "bf16-mixed"], pace: Pace) -> NoReturn:
    """What ``proxemic evaluate`` embeds images by; a step is one batch."""
    keep_freed_memory()
    setting.begin()
    recipe = setting.recipe()
    model = build_model(ModelConfig(setting.network, EMBEDDING, image_size=setting.side)).eval()
    images = recipe.load().train
    many = images.select(torch.arange(len(images)).repeat(1_000))
    model.register_forward_hook(lambda *_: pace.step())
    embed_images(model, many, recipe.images, batch_size=setting.batch, workers=setting.workers, precision=precision)
    raise AssertionError


def embed_loop(setting: Setting, kind: str, half: bool, pace: Pace) -> NoReturn:
    """A loop over batches: plain, or eager, compiled or in ONNX Runtime with all that is known to help."""
    if kind != "plain":
        keep_freed_memory()
    setting.begin()
    network: Any = PlainNetwork(setting.network).eval()
    layout = torch.contiguous_format if kind in ("plain", "onnx") else torch.channels_last
    network.to(memory_format=layout)
    if kind == "compiled":
        from torch._inductor import config

        config.freezing = True
        network = torch.compile(network)
    if kind == "onnx":
        network = in_onnx_runtime(network, setting)
    with torch.inference_mode(kind in ("eager", "onnx")), torch.no_grad():
        for images, _ in forever(setting.loader(training=False)):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                network(images.contiguous(memory_format=layout))
            pace.step()
    raise AssertionError


def in_onnx_runtime(network: nn.Module, setting: Setting) -> Callable[[Tensor], object]:
    """The network as a function of a batch, run by ONNX Runtime."""
    import onnxruntime

    file = setting.folder / f"{setting.network}.onnx"
    torch.onnx.export(network, (torch.rand(setting.batch, 3, setting.side, setting.side),), file, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setting.threads
    session = onnxruntime.InferenceSession(file, options)
    (given,) = session.get_inputs()
    return lambda images: session.run(None, {given.name: images.numpy()})


def step_alone(setting: Setting, pace: Pace, *, kept: bool, last: bool, half: bool, training: bool) -> NoReturn:
    """The network alone on one batch of noise: what each measure gains."""
    if kept:
        keep_freed_memory()
    setting.begin()
    layout = torch.channels_last if last else torch.contiguous_format
    network: Any = PlainNetwork(setting.network).to(memory_format=layout).train(training)  # type: ignore[call-overload]
    images = torch.randn(setting.batch, 3, setting.side, setting.side).contiguous(memory_format=layout)
    with torch.set_grad_enabled(training):
        while True:
            network.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                embeddings = network(images)
            if training:
                embeddings.square()[:, 0].sum().backward()
            pace.step()


def print_header(of: str, others: Sequence[str], fast: str, column: str) -> None:
    """Print the first two lines of a table of ours beside others; ``fast`` is the name of our faster loop."""
    columns = ["plain", "ours", f"ours, {column}", *others, "ours / plain", f"{fast} / plain", f"{fast} / best"]
    print(f"| {of} | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")


def print_row(name: str, rates: Sequence[float], ratios: Sequence[float] = ()) -> None:
    """One line of a table."""
    cells = [*(f"{rate:.3g}" for rate in rates), *(f"{ratio:.2f}" for ratio in ratios)]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def training_table(settings: Sequence[Setting], run: Callable[..., dict[str, float]]) -> None:
    """Print training's images a second."""
    print_header("training", ["best", "best, bfloat16"], "auto", "auto")
    for setting in settings:
        loops = {
            "plain": partial(train_plain, setting),
            "ours": partial(train_ours, setting, "32-true"),
            "auto": partial(train_ours, setting, "auto"),
            "best": partial(train_best, setting, False),
            "half": partial(train_best, setting, True),
        }
        rate = {name: setting.batch / seconds for name, seconds in run(loops).items()}
        best = max(rate["best"], rate["half"])
        ratios = [rate["ours"] / rate["plain"], rate["auto"] / rate["plain"], rate["auto"] / best]
        print_row(setting.network, list(rate.values()), ratios)


def evaluation_table(settings: Sequence[Setting], run: Callable[..., dict[str, float]], others: Sequence[str]) -> None:
    """Print embedding's images a second."""
    ways = ["eager", *others]
    names = [*ways, *(f"{way}, bfloat16" for way in ways if way != "onnx")]
    print_header("embedding", names, "half", "bfloat16")
    for setting in settings:
        loops = {
            "plain": partial(embed_loop, setting, "plain", False),
            "ours": partial(embed_ours, setting, "32-true"),
            "half": partial(embed_ours, setting, "bf16-mixed"),
        }
        loops |= {name: partial(embed_loop, setting, name.partition(",")[0], "," in name) for name in names}
        rate = {name: setting.batch / seconds for name, seconds in run(loops).items()}
        best = max(rate[name] for name in names)
        ratios = [rate["ours"] / rate["plain"], rate["half"] / rate["plain"], rate["half"] / best]
        print_row(setting.network, list(rate.values()), ratios)


def what_helps_table(settings: Sequence[Setting], run: Callable[..., dict[str, float]]) -> None:
    """Print what each measure gains, each added to those before."""
    print("| network alone | plain | + mallopt | + channels_last | + bfloat16 |")
    print("|---|---:|---:|---:|---:|")
    for setting in settings:
        for training in (True, False):
            steps = [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]
            loops = {
                str(each): partial(step_alone, setting, kept=each[0], last=each[1], half=each[2], training=training)
                for each in steps
            }
            rates = [setting.batch / seconds for seconds in run(loops).values()]
            print_row(f"{setting.network} {'training' if training else 'inference'}", rates)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), help="convnet, or any of timm")
    parser.add_argument("--evaluation", action="store_true", help="embedding rather than training")
    parser.add_argument(
        "--compiled", action="store_true", help="with --evaluation: and torch.compile, which takes minutes"
    )
    parser.add_argument("--onnx", action="store_true", help="with --evaluation: also ONNX Runtime; needs onnx, too")
    parser.add_argument("--what-helps", action="store_true", help="the network alone, plain and with each measure")
    parser.add_argument("--side", type=int, default=128, help="of the images, in pixels")
    parser.add_argument("--batch", type=int, help="images a batch (by network: 32, or 128 of the ConvNet)")
    parser.add_argument("--steps", type=int, default=4, help="in a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="processes that load images, of each loop")
    parser.add_argument("--processor-time", action="store_true", help="not the clock's, on a machine with other work")
    parser.add_argument("--smoke", action="store_true", help="small images and few steps: does it run?")
    args = parser.parse_args(argv)
    side, steps, rounds = (32, 1, 1) if args.smoke else (args.side, args.steps, args.rounds)
    print(f"torch {torch.__version__}, {args.threads} threads, {side} pixels, images a second")
    with TemporaryDirectory() as folder:
        path = Path(folder)
        batches = {name: 8 if args.smoke else args.batch or NETWORKS.get(name, 32) for name in args.networks}
        # An epoch that does not end, as epochs of a few seconds would write checkpoints most of the time.
        write_images(path, max(batches.values()) * (steps * (rounds + 1) + 2), side)
        settings = [Setting(name, path, side, batch, args.threads, args.workers) for name, batch in batches.items()]
        run = partial(alternate, steps=steps, rounds=rounds, processor_time=args.processor_time)
        if args.what_helps:
            what_helps_table(settings, run)
        elif args.evaluation:
            others = [name for name in ("compiled", "onnx") if getattr(args, name)]
            evaluation_table(settings, run, others)
        else:
            training_table(settings, run)


if __name__ == "__main__":
    main()

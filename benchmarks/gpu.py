"""Everything that is to be measured on a GPU, in stages of less than nine minutes, one row after the other.

    python benchmarks/gpu.py --out gpu --stage correctness     # errors against float64, what waits, the tests
    python benchmarks/gpu.py --out gpu --stage matrix          # a step of the losses in every way, and of optimisers
    python benchmarks/gpu.py --out gpu --stage tuning          # sizes of chunks; our own ways twice more
    python benchmarks/gpu.py --out gpu --stage training        # images a second: glyphs, and ResNet-50 at 224 pixels
    python benchmarks/gpu.py --out gpu --tables                # what there is, as the documentation shows it
    python benchmarks/gpu.py --out rehearsed --device cpu --smoke

Every row is written to OUT/STAGE.json as soon as it is there. A stage stops before a row that would end after its time,
and says what it left out; a second start goes on with that. A machine without a network needs no environment of its
own: ``make gpu-packages`` here puts what it lacks into .cache/gpu (see docs/benchmarks.md), and there

    PYTHONPATH=src:.cache/gpu python3 benchmarks/gpu.py --out gpu --stage correctness
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from gpu_stages.machine import describe
from gpu_stages.rows import Rows
from gpu_stages.tables import tables


class Stage(Protocol):
    """Adds all rows of a stage."""

    def __call__(self, rows: Rows, device: torch.device, *, smoke: bool) -> None: ...


STAGES = {"correctness": 480.0, "matrix": 530.0, "tuning": 480.0, "training": 500.0}
"""Each with its seconds."""


def stage(name: str) -> Stage:
    """A stage, of which only what it needs is imported."""
    if name == "correctness":
        from gpu_stages import correctness as module
    elif name == "matrix":
        from gpu_stages import matrix as module
    elif name == "tuning":
        from gpu_stages import tuning as module
    else:
        from gpu_stages import training as module
    return module.run


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=[*STAGES, "all"], default="all")
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON files")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--smoke", action="store_true", help="small sizes, nothing compiled: does it run?")
    parser.add_argument("--minutes", type=float, help="of each stage, in place of its own")
    parser.add_argument("--tables", action="store_true", help="print the tables of OUT and measure nothing")
    args = parser.parse_args(argv)
    if args.tables:
        print(tables(args.out))
        return
    device = torch.device(args.device)
    if args.smoke:
        torch.set_num_threads(1)
        torch.compile = lambda function, **_: function  # type: ignore[assignment]
    args.out.mkdir(parents=True, exist_ok=True)
    machine = describe(device) | ({"smoke": True} if args.smoke else {})
    for name in STAGES if args.stage == "all" else [args.stage]:
        seconds = STAGES[name] if args.minutes is None else 60 * args.minutes
        rows = Rows(args.out / f"{name}.json", machine, seconds, say(name))
        stage(name)(rows, device, smoke=args.smoke)
        left_out = f"left out, for want of time: {', '.join(rows.left_out)}" if rows.left_out else "complete"
        print(f"{name}: {left_out}", flush=True)


def say(stage: str) -> Callable[[str], None]:
    """Print each row at once, with the name of its stage."""
    return lambda line: print(f"{stage}: {line}", flush=True)


if __name__ == "__main__":
    main()

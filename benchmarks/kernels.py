"""What can be known of the Triton kernels of the losses without a GPU.

    python benchmarks/kernels.py                # compiled ahead of time: registers, shared memory, spills; some minutes
    python benchmarks/kernels.py --errors       # in Triton's interpreter: the largest errors of each loss
    python benchmarks/kernels.py --smoke        # few of the kernels

A thread of these GPUs has at most 255 registers. What does not fit into them is spilled to memory, which is slow: bytes
of it are those of the stack of a thread, which the kernels use for nothing else. Errors are relative, against float64,
with one and three proxies per class, sampled and not, in chunks.
"""

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch

from proxemic.losses import MaxPooling, Pooling, Scoring, SoftmaxPooling
from proxemic.losses.scores.fused import Fused
from proxemic.losses.scores.products import Products

GPUS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
"""Compute capabilities of A100, H100 and B200."""
BATCH, DIM = 1024, 512
TYPES = {torch.float16: "fp16", torch.float32: "fp32", torch.int64: "i64"}


class Used(NamedTuple):
    """What a thread and a program use."""

    registers: int
    shared: int  # bytes
    spilled: int  # bytes

    def __str__(self) -> str:
        return f"{self.registers}, {self.shared / 1024:.0f} KB, {self.spilled}"


@dataclass(frozen=True)
class Variant:
    """A kernel as a loss would start it."""

    kernel: str
    operands: str  # half, tf32 or float32
    proxies: int
    pooling: Pooling = SoftmaxPooling()
    class_wise: bool = False

    def compile_for(self, capability: int) -> Used:
        """Compile it for a GPU that need not be there."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from proxemic.losses.scores import triton_kernels

        kernel = {"log_sums": triton_kernels.log_sums, "slopes": triton_kernels.slopes}[self.kernel]
        fused = self._fused()
        constants = fused.tiles | ({"PRECISION": "tf32"} if self.operands == "tf32" else {})
        options = {name: constants.pop(name) for name in ("num_warps", "num_stages")} | {"enable_fp_fusion": True}
        operand = TYPES[fused.queries.dtype]
        kinds = {"x": f"*{operand}", "w": f"*{operand}", "grad": f"*{operand}", "labels": "*i64"}
        kinds |= {"scale": "fp32", "sharpness": "fp32", "first": "i32", "classes": "i32", "batch": "i32"}
        kinds |= dict.fromkeys(constants, "constexpr")
        names: list[str] = kernel.arg_names
        signature = {name: kinds.get(name, "*fp32") for name in names}
        # As the launcher finds them: memory and the batch are multiples of 16.
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if signature[name].startswith("*") or name == "batch"
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
        compiled: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        return Used(*_resources(compiled.asm["cubin"], compiled.metadata.shared))

    def _fused(self) -> Fused:
        scoring = Scoring(20.0, torch.nn.functional.softplus if self.class_wise else None, pooling=self.pooling)
        queries, labels = torch.empty(BATCH, DIM), torch.empty(BATCH, dtype=torch.long)
        return Fused(queries, labels, scoring, Products("half" if self.operands == "half" else None), 1, self.proxies)


def _resources(cubin: bytes, shared: int) -> tuple[int, int, int]:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(each) for each in re.findall(r"\b(?:REG|STACK|LOCAL):(\d+)", found)[:3])
    return registers, shared, stack + local


def variants(*, smoke: bool) -> Iterator[Variant]:
    """All kernels, or the largest."""
    if smoke:
        yield from (Variant(kernel, "half", proxies) for kernel, proxies in product(("log_sums", "slopes"), (1, 3)))
        return
    for kernel, operands in product(("log_sums", "slopes"), ("half", "tf32", "float32")):
        yield from (Variant(kernel, operands, proxies) for proxies in (1, 3, 10, 64))
        yield from (Variant(kernel, operands, proxies, class_wise=True) for proxies in (1, 3))
        yield Variant(kernel, operands, 3, MaxPooling())


def print_resources(*, smoke: bool) -> None:
    """A row per kernel: registers of a thread, shared memory of a program, bytes spilled."""
    print(f"| kernel | sum over | operands | K | pooling | {' | '.join(GPUS)} |")
    print(f"|---|---|---|---:|---|{'---|' * len(GPUS)}")
    for each in variants(smoke=smoke):
        pooling = "–" if each.proxies == 1 else "max" if isinstance(each.pooling, MaxPooling) else "softmax"
        cells = [each.kernel, "batch" if each.class_wise else "classes", each.operands, str(each.proxies), pooling]
        cells += [str(each.compile_for(capability)) for capability in GPUS.values()]
        print(f"| {' | '.join(cells)} |", flush=True)


def print_errors(*, smoke: bool) -> None:
    """A row per loss: its largest errors, as benchmarks/gpu.py finds them on a GPU."""
    from gpu_stages import correctness

    print("| loss | float32 | half | beyond the bounds |\n|---|---:|---:|---|")
    losses = sorted(correctness.LOSSES.keys() - correctness.WITHOUT_KERNELS)
    for name in ["ProxyAnchorLoss"] if smoke else losses:
        row = correctness.errors(name, torch.device("cpu"), (200, 40), compiled="triton")
        cells = [f"{row['errors'][precision][0]:.1e}" for precision in ("float32", "half")]
        print(f"| {name} | {' | '.join(cells)} | {', '.join(row['beyond the bounds']) or '–'} |", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--errors", action="store_true", help="errors in place of what is compiled")
    parser.add_argument("--smoke", action="store_true", help="few of the kernels or losses")
    args = parser.parse_args(argv)
    if args.errors:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        print_errors(smoke=args.smoke)
    else:
        print_resources(smoke=args.smoke)


if __name__ == "__main__":
    main()

"""The Triton kernels: in Triton's interpreter, compiled for GPUs that are not there, and where they cannot run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from losses.test_losses import gradients
from proxemic.losses import ArcFaceLoss
from proxemic.losses.scores import fused

pytest.importorskip("triton")
pytestmark = pytest.mark.cpu

HERE = Path(__file__)
BENCHMARK = HERE.parents[3] / "benchmarks" / "kernels.py"


def run(program: Path, *arguments: str, **environment: str) -> list[str]:
    """In a process of its own, as Triton interprets or compiles all of one process."""
    path = os.pathsep.join([str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path} | environment
    done = subprocess.run([sys.executable, program, *arguments], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_loss_equals_itself_without_kernels() -> None:
    *checks, last = run(HERE.with_name("interpreting.py"))
    assert last == f"{len(checks)} checks, 0 faults"
    assert len(checks) > 90


def test_the_kernels_fit_the_registers_of_gpus(tmp_path: Path) -> None:
    _, _, *rows = run(BENCHMARK, "--smoke", TRITON_CACHE_DIR=str(tmp_path))
    found = [re.findall(r"(\d+), (\d+) KB, (\d+)", row) for row in rows]
    assert [len(each) for each in found] == [3] * 4
    for registers, shared, spilled in (map(int, each) for row in found for each in row):
        assert 0 < registers <= 255
        assert 0 < shared <= 160  # as much as an A100 has, and half of what two programs would need there
        assert spilled == 0


def test_the_errors_of_the_kernels_are_printed() -> None:
    _, _, row = run(BENCHMARK, "--errors", "--smoke")
    name, *errors, beyond = row.strip("| ").split(" | ")
    assert (name, beyond) == ("ProxyAnchorLoss", "–")
    assert 1e-8 < float(errors[0]) < 1e-5 < float(errors[1]) < 3e-3


def results(**options: str) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    loss = ArcFaceLoss(30, 8, proxies_per_class=2, chunk_size=10, **options)  # type: ignore[arg-type]
    x = torch.randn(6, 8, requires_grad=True)
    value = loss(x, torch.arange(6))
    return value.detach(), *gradients(value, x, loss.proxies)


@pytest.mark.parametrize("missing", ["GPU", "Triton"])
def test_without_what_they_need_a_loss_says_so_once_and_runs_as_it_does_without(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused.lacking_on.cache_clear()
    fused._warn.cache_clear()
    reason = "its proxies are on a device of type cpu"
    if missing == "Triton":
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        reason = "Triton is not installed"
    with pytest.warns(UserWarning, match=rf"^The loss runs without Triton's kernels, as {reason}: leave out ") as said:
        found, again = results(compile_chunks="triton"), results(compile_chunks="triton")
    assert len(said) == 1
    for got, same, want in zip(found, again, results(), strict=True):
        assert torch.equal(got, want)
        assert torch.equal(same, want)
    fused.lacking_on.cache_clear()


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^compile_chunks is 'cuda', but must be True, False, or triton for Triton"):
        results(compile_chunks="cuda")


def test_factors_are_in_the_range_of_half_precision() -> None:
    for factors in (torch.tensor([1e-20, -3.0]), torch.zeros(2), torch.tensor([1e20])):
        values, unit = fused.Factors.of(factors)
        assert values.abs().max() <= 2**13 + 1
        torch.testing.assert_close(values * unit, factors)

"""Two phases, warm-up, starting from a run, plateaus and clipping, in whole and resumed runs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from proxemic.errors import UserError
from proxemic.losses import CurricularFaceLoss, PairwiseLoss, WarpedSoftmaxLoss
from proxemic.models import build_model
from proxemic.recipes.flags import differences, merge
from proxemic.recipes.reader import read_recipe
from proxemic.training import train
from proxemic.training.phases import continue_optimizer, share_parameters
from stopping import Stopped, killed_and_resumed, losses, run

WARPED = ["--loss", "WarpedSoftmaxLoss", "--loss.alpha", "4", "--loss.k1", "0.9", "--loss.k2", "1.2"]
SECOND = ["--second_phase.epochs", "2", "--second_phase.loss.alpha", "1", "--second_phase.optim.lr", "0.0005"]
LAST = ["--evaluation.select_on", "last", "--evaluation.untrained", "false"]


def test_averages_are_carried_on_and_the_state_of_what_is_no_longer_trained_is_not() -> None:
    one, two = CurricularFaceLoss(3, 4), CurricularFaceLoss(3, 4, scale=8.0)
    share_parameters(two, one)
    assert [id(buffer) for buffer in two.buffers()] == [id(buffer) for buffer in one.buffers()]
    frozen = torch.nn.Parameter(torch.ones(1))
    earlier = torch.optim.AdamW([one.proxies, frozen])
    for parameter in (one.proxies, frozen):
        parameter.grad = torch.ones_like(parameter)
    earlier.step()
    later = torch.optim.AdamW([two.proxies])
    continue_optimizer(later, earlier)
    assert list(later.state) == [two.proxies]


def optimizer_state(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["optimizer"]


def assert_same_optimizer(one: Path, other: Path) -> None:
    found, expected = optimizer_state(one), optimizer_state(other)
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)
    assert found["param_groups"] == expected["param_groups"]


@pytest.fixture(scope="module")
def two_phases(recipe: Path) -> Path:
    return run(recipe, recipe.parent / "two", *WARPED, *SECOND, *LAST, "--training.epochs", "4")


def test_the_second_phase_changes_its_epochs_and_no_other(recipe: Path, two_phases: Path, tmp_path: Path) -> None:
    one = losses(run(recipe, tmp_path / "one", *WARPED, *LAST, "--training.epochs", "4"))
    two = losses(two_phases)
    assert two[:2] == one[:2]
    assert two[2] != one[2]
    group = optimizer_state(two_phases)["param_groups"][0]
    assert group["initial_lr"] == 0.0005
    assert group["lr"] == pytest.approx(0.00005)  # StepLR of two epochs, begun anew
    steps = {float(state["step"]) for state in optimizer_state(two_phases)["state"].values()}
    total = torch.load(two_phases / "checkpoints" / "last.ckpt", weights_only=True)["step"]
    assert steps == {total}  # the moments are carried on


def test_a_second_phase_that_has_begun_is_not_moved(two_phases: Path, tmp_path: Path) -> None:
    """Its schedule was made for its number of steps, and would have ended for all further epochs."""
    shutil.copytree(two_phases, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    read = read_recipe(two_phases / "recipe.yaml", ["--training.epochs", "8"])
    with pytest.raises(UserError, match="began after 2 epochs, but by its recipe it does so after 6: put"):
        train(read.recipe, tmp_path / "run", resume=True, report=[].append)
    read = read_recipe(two_phases / "recipe.yaml", ["--second_phase", "null"])
    with pytest.raises(UserError, match="began after 2 epochs, but by its recipe it does so after none: put"):
        train(read.recipe, tmp_path / "run", resume=True, report=[].append)


def test_a_memory_is_taken_over_with_what_is_in_it() -> None:
    pml = pytest.importorskip("pytorch_metric_learning.losses")
    losses = [PairwiseLoss(5, 4, loss=pml.ContrastiveLoss(), memory_size=6) for _ in range(2)]
    x, y = torch.randn(4, 4), torch.tensor([0, 0, 1, 2])
    losses[0](x, y)
    share_parameters(losses[1], losses[0])
    expected, found = losses[0].state_dict(), losses[1].state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert found["loss.memory.label_memory"][:4].tolist() == y.tolist()
    assert found["loss._extra_state"].tolist() == [4, 0]


def test_a_recipe_with_a_second_phase_reads_back_as_it_was_written(two_phases: Path) -> None:
    text = (two_phases / "recipe.yaml").read_text()
    assert read_recipe(two_phases / "recipe.yaml").yaml == text


def test_the_second_phase_from_a_saved_first_one(recipe: Path, tmp_path: Path) -> None:
    first = run(recipe, tmp_path / "first", *WARPED, *LAST, "--training.epochs", "2")
    alpha, still = ("--loss.alpha", "1"), ("--optim.lr", "1e-12", "--optim.loss_lr", "1e-12")
    flags = [*WARPED, *alpha, *still, *LAST, "--training.epochs", "2", "--training.start_from", first]
    second = run(recipe, tmp_path / "second", *flags)
    assert len(losses(second)) == 2
    for name in ("model.safetensors", "loss.safetensors"):
        found, expected = load_file(second / name), load_file(first / name)
        for key in expected:
            if "running" not in key and "num_batches" not in key:
                torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-6)


def test_a_start_that_does_not_fit_is_refused(recipe: Path, two_phases: Path, tmp_path: Path) -> None:
    start = ["--training.start_from", two_phases]
    with pytest.raises(UserError, match="does not fit"):
        run(recipe, tmp_path / "other", *start, "--model.width", "4")
    with pytest.raises(UserError, match="does not hold a run"):
        run(recipe, tmp_path / "none", "--training.start_from", tmp_path / "missing")
    with pytest.raises(ValueError, match=r"second_phase\.loss has the parameters"):
        run(recipe, tmp_path / "more", *SECOND, "--second_phase.loss.proxies_per_class", "3")
    assert list(tmp_path.iterdir()) == []


def test_warm_up_trains_head_and_proxies_only(recipe: Path, tmp_path: Path) -> None:
    flags = [*LAST, "--training.epochs", "2", "--training.warmup_epochs"]
    warm = load_file(run(recipe, tmp_path / "warm", *flags, "2") / "model.safetensors")
    thawed = load_file(run(recipe, tmp_path / "thawed", *flags, "1") / "model.safetensors")
    for name, parameter in initial_model(recipe).named_parameters():
        stood_still = torch.equal(warm[name], parameter)
        assert stood_still == name.startswith("backbone."), name
        assert not torch.equal(thawed[name], parameter), name


def initial_model(recipe: Path) -> torch.nn.Module:
    read = read_recipe(recipe)
    torch.manual_seed(read.recipe.seed)
    return build_model(read.recipe.model)


def test_a_second_phase_that_begins_with_the_end_of_the_warm_up_trains_the_backbone(
    recipe: Path, tmp_path: Path
) -> None:
    flags = [*WARPED, *SECOND, *LAST, "--training.epochs", "4", "--training.warmup_epochs", "2"]
    whole = run(recipe, tmp_path / "whole", *flags)
    assert [group["name"] for group in optimizer_state(whole)["param_groups"]] == ["backbone", "head", "proxies"]
    trained = load_file(whole / "model.safetensors")
    for name, parameter in initial_model(recipe).named_parameters():
        assert not torch.equal(trained[name], parameter), name
    with pytest.raises(Stopped):
        run(recipe, tmp_path / "run", *flags, stop_after=3)
    assert_same_optimizer(run(recipe, tmp_path / "run", resume=True), whole)


def test_resuming_in_the_middle_of_an_epoch_of_the_warm_up(recipe: Path, tmp_path: Path) -> None:
    killed_and_resumed(recipe, tmp_path / "run", *LAST, "--training.epochs", "2", "--training.warmup_epochs", "2")
    trained = load_file(tmp_path / "run" / "model.safetensors")
    for name, parameter in initial_model(recipe).named_parameters():
        assert torch.equal(trained[name], parameter) == name.startswith("backbone."), name


def test_a_flag_reaches_both_phases_of_a_recipe_that_is_spelt_out(two_phases: Path) -> None:
    second = read_recipe(two_phases / "recipe.yaml", ["--loss.k1", "0.5"]).recipe.second_phase
    assert second is not None
    loss = second.loss(5, 4)
    assert isinstance(loss, WarpedSoftmaxLoss)
    assert loss(torch.zeros(1, 4), torch.tensor([0])).isfinite()
    assert yaml.safe_load((two_phases / "recipe.yaml").read_text())["second_phase"] == {
        "epochs": 2, "loss": {"alpha": 1.0}, "optim": {"lr": 0.0005},
    }  # fmt: skip


def test_a_class_is_the_same_by_its_name_and_by_its_path() -> None:
    base = {"class_path": "proxemic.losses.WarpedSoftmaxLoss", "init_args": {"alpha": 4, "k1": 0.9}}
    merged = merge(base, {"class_path": "WarpedSoftmaxLoss", "init_args": {"alpha": 3}})
    assert merged == {**base, "init_args": {"alpha": 3, "k1": 0.9}}
    assert merge(base, {"class_path": "mine.WarpedSoftmaxLoss"}) == {"class_path": "mine.WarpedSoftmaxLoss"}


@given(
    base=st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.dictionaries(st.just("x"), st.integers(0, 2))),
    changes=st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
)
def test_differences_are_what_merge_needs(base: dict[str, Any], changes: dict[str, Any]) -> None:
    changed = merge(base, changes)
    assert merge(base, differences(base, changed)) == changed
    assert differences(base, base) == {}


def test_a_plateau_lowers_the_rates_and_resumes(recipe: Path, tmp_path: Path) -> None:
    plateau = "torch.optim.lr_scheduler.ReduceLROnPlateau"
    flags = ["--optim.schedule", plateau, "--optim.schedule.mode", "max", "--optim.schedule.patience", "0"]
    flags += ["--optim.schedule.threshold", "1", "--evaluation.untrained", "false"]  # nothing is ever better enough
    whole = run(recipe, tmp_path / "whole", *flags)
    assert optimizer_state(whole)["param_groups"][0]["lr"] == pytest.approx(0.002 * 0.1**4)
    with pytest.raises(Stopped):
        run(recipe, tmp_path / "run", *flags, stop_after=3)
    resumed = run(recipe, tmp_path / "run", resume=True)
    assert_same_optimizer(resumed, whole)
    with pytest.raises(ValueError, match="set its mode to max"):
        run(recipe, tmp_path / "min", "--optim.schedule", plateau)
    with pytest.raises(UserError, match="select_on is last"):
        run(recipe, tmp_path / "last", *flags, "--evaluation.select_on", "last")


def test_gradients_are_clipped_those_of_the_backbone_also_alone(recipe: Path, tmp_path: Path) -> None:
    flags = [*LAST, "--training.epochs", "1", "--optim.optimizer", "torch.optim.SGD", "--optim.lr", "1"]
    initial = {name: value.detach() for name, value in initial_model(recipe).named_parameters()}
    moved = {}
    for clip in ("clip_norm", "clip_backbone_norm"):
        out = run(recipe, tmp_path / clip, *flags, "--optim.loss_lr", "1", f"--optim.{clip}", "1e-3")
        trained = load_file(out / "model.safetensors")
        for part in ("backbone.", "head."):
            steps = [(trained[name] - value).flatten() for name, value in initial.items() if part in name]
            moved[clip, part] = float(torch.cat(steps).norm())
    most = 1.001e-3 * torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)["step"]
    assert 0 < max(moved["clip_norm", "backbone."], moved["clip_norm", "head."]) <= most
    assert 0 < moved["clip_backbone_norm", "backbone."] <= most < moved["clip_backbone_norm", "head."]


def test_a_search_does_not_look_at_the_test_classes(recipe: Path, tmp_path: Path) -> None:
    read = read_recipe(recipe, ["--training.epochs", "1"])
    rows: list[Mapping[str, float]] = []
    result = train(read.recipe, tmp_path / "run", report=[].append, test=False, on_epoch=rows.append).metrics
    assert result == json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(result) == {"validation", "epoch", "kept", "selected_on", "seed", "precision"}
    assert result["validation"]["map@r"] == rows[0]["map@r"]
    assert not (tmp_path / "run" / "gallery.png").exists()


@pytest.mark.parametrize(
    ("optimizer", "before", "after"),
    [
        (torch.optim.RMSprop, {}, {"momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {}, {"amsgrad": True}),
        (torch.optim.RMSprop, {"centered": True}, {"centered": True}),
    ],
)
def test_state_that_the_new_options_lack_begins_anew(
    optimizer: type[torch.optim.Optimizer], before: dict[str, Any], after: dict[str, Any]
) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    earlier, later = optimizer([weight], **before), optimizer([weight], **after)
    earlier.step()
    continue_optimizer(later, earlier)
    assert bool(later.state) == (before == after)
    later.step()

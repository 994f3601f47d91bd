"""Bad input to ``proxemic train``: one sentence, exit code 2, no traceback, nothing half-written."""

import shutil
from pathlib import Path

import pytest

import warm
from command_line import Here, assert_refused, warm_proxemic, warm_start
from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.locks import exclusive_lock
from proxemic.training import RunDirectory


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images") / "birds")


PML = "pytorch_metric_learning"
PAIRS = ["--recipe", "glyphs-small/multi-similarity"]
SUPCON = ["--loss", f"{PML}.losses.SupConLoss"]
HALF = ["--training.precision", "16-mixed", "--training.accelerator", "cpu"]
FLAGS = {
    "unknown recipe": (["--recipe", "glyps"], ["glyps", "did you mean glyphs"]),
    "missing recipe file": (["--recipe", "mine.yaml"], ["mine.yaml", "does not exist"]),
    "no recipe": ([], ["--recipe is missing"]),
    "key of another source": (["--recipe", "glyphs", "--data.strict", "true"], ["data.strict", "data.split_seed"]),
    "strict without own images": (["--recipe", "glyphs", "--strict"], ["--strict is for recipes of your own images"]),
    "pair loss by name": ([*PAIRS, "--loss.loss", "TripletMarginLos"], [f"mean {PML}.losses.TripletMarginLoss"]),
    "proxies in pairs": ([*PAIRS, "--loss.loss", f"{PML}.losses.ProxyAnchorLoss"], ["is ProxyAnchorLoss", "itself"]),
    "small memory": ([*PAIRS, "--loss.memory_size", "64"], ["memory_size is 64", "batch, which is 128"]),
    "K = 0": (["--recipe", "glyphs-small", "--loss.proxies_per_class", "0"], ["proxies_per_class is 0", "at least 1"]),
    "unknown backbone": (["--recipe", "glyphs", "--model.backbone", "resnet5O"], ["resnet5O", "resnet50"]),
    "m does not divide": (["--recipe", "glyphs", "--batches.images_per_class", "3"], ["images_per_class is 3", "128"]),
    "resume of nothing": (["--resume", "nowhere"], ["nowhere", "recipe.yaml"]),
    "no GPU": (["--recipe", "glyphs", "--training.accelerator", "mps"], ["accelerator is mps", "take cpu"]),
    "half precision on a CPU": (["--recipe", "glyphs", *HALF], ["16-mixed", "needs a CUDA GPU", "take bf16"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAGS)
def test_flags(case: str, tmp_path: Path, here: Here) -> None:
    flags, words = FLAGS[case]
    result = here("train", *flags, cwd=tmp_path)
    assert_refused(result, words)
    assert list(tmp_path.iterdir()) == []


def test_a_list_is_no_recipe(tmp_path: Path, here: Here) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text("- a\n- list\n")
    assert_refused(here("train", "--recipe", recipe, cwd=tmp_path), [str(recipe), "does not hold a recipe"])
    assert list(tmp_path.iterdir()) == [recipe]


def test_an_unreadable_image_is_skipped_and_counted_or_refused(images: Path, tmp_path: Path, here: Here) -> None:
    root = tmp_path / "folder"
    shutil.copytree(images, root)
    whole = (root / "class 01" / "0.png").read_bytes()
    (root / "class 00" / "text.png").write_bytes(b"")
    (root / "class 01" / "short.png").write_bytes(whole[: len(whole) // 2])
    recipe = write_recipe(tmp_path / "tiny.yaml", root)
    result = here("train", "--recipe", recipe, "--out", tmp_path / "run", "--training.epochs", "1")
    assert result.returncode == 0, result.stderr
    assert "2 unreadable images" in result.stdout
    assert "text.png" in result.stdout

    result = here("train", "--recipe", recipe, "--out", tmp_path / "strict", "--strict")
    assert_refused(result, ["2 unreadable images", "text.png", "--strict"])
    assert not (tmp_path / "strict").exists()


def test_an_output_folder_that_is_taken(images: Path, tmp_path: Path, here: Here) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", images)
    run = tmp_path / "run"
    assert here("train", "--recipe", recipe, "--out", run, "--training.epochs", "1").returncode == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert_refused(here("train", "--recipe", recipe, "--out", run), ["holds another run", "--resume"])
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("all of it")
    assert_refused(here("train", "--recipe", recipe, "--out", other), ["is not empty"])
    assert_refused(here("train", "--recipe", recipe, "--out", recipe), ["is a file"])
    below = recipe / "run"
    assert_refused(
        here("train", "--recipe", recipe, "--out", below), [f"{below} cannot be written to: not a directory"]
    )
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("x" * 300, ["has a name of 300 bytes, but at most 255"]),
        ("/".join(["x" * 200] * 30), ["bytes long, but at most 3,800"]),
    ],
)
def test_an_output_folder_that_no_file_system_takes(
    out: str, words: list[str], images: Path, tmp_path: Path, here: Here
) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", images)
    result = here("train", "--recipe", recipe, "--out", tmp_path / out)
    assert_refused(result, ["--out", "choose a shorter one", *words])
    assert len(result.stderr) < 250
    assert list(tmp_path.iterdir()) == [recipe]


def test_what_a_kill_left_before_a_run_had_begun_is_no_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.checkpoint.parent.mkdir()
    for left in (run.environment, run.classes, run.checkpoint.with_name(".lock"), tmp_path / ".recipe.yaml.7.tmp"):
        left.touch()
    run.check_new()
    run.checkpoint.touch()
    with pytest.raises(UserError, match="is not empty"):
        run.check_new()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batches.images_per_class", "1"], ["8/1 = 8 classes a batch", "5 training classes"]),
        (["--proxies", "sharded", "--optim.optimizer", "torch.optim.Adafactor"], ["Adafactor", "proxies: replicated"]),
        (["--optim.schedule", "torch.optim.lr_scheduler.ReduceLROnPlateau"], ["ReduceLROnPlateau", "mode to max"]),
        ([*SUPCON, "--proxies", "sharded"], ["SupConLoss has none", "replicated"]),
        (
            [*SUPCON, "--training.callbacks", "[proxemic.training.DistanceToProxy]"],
            ["the loss, SupConLoss, has no prox"],
        ),
        (["--model.backbone_args", "{dept: 2}"], ["'convnet' takes none"]),
        (["--model.backbone", "torch.nn.Flatten", "--model.backbone_args.axis=1"], ["torch.nn", "Flatten", "'axis'"]),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(
    flags: list[str], words: list[str], images: Path, tmp_path: Path, here: Here
) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", images)
    assert_refused(here("train", "--recipe", recipe, "--out", tmp_path / "run", *flags), words)
    assert not (tmp_path / "run").exists()


def test_resume_stands_alone(run: Path, here: Here) -> None:
    assert_refused(here("train", "--resume", run, "--recipe", "own"), ["--resume", "alone"])
    refused = here("train", "--resume", run, "--data.root", run, "--training.epochs", "4", "--optim.lr", "1")
    assert_refused(refused, ["leave out optim.lr", "training.start_from"])


def test_a_loss_that_becomes_nan_later_keeps_the_last_good_checkpoint(images: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", images)
    # The rate explodes after the second epoch.
    recipe.write_text(recipe.read_text().replace("step_size: 2", "step_size: 2, gamma: 1.0e+25"))
    run = tmp_path / "run"
    result = warm_proxemic("train", "--recipe", recipe, "--out", run)
    assert_refused(result, ["of step 6", "learning rate", "optim.lr", "is kept", str(run)])
    assert not (run / "metrics.json").exists()
    assert (run / "checkpoints" / "last.ckpt").exists()
    assert len((run / "history.csv").read_text().splitlines()) == 3
    assert warm_proxemic("evaluate", run).returncode == 0


@pytest.mark.full_disk
def test_a_full_disk_keeps_the_checkpoint_before(images: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", images)
    run = tmp_path / "run"
    assert warm_proxemic("train", "--recipe", recipe, "--out", run, "--training.epochs", "2").returncode == 0
    (run / "metrics.json").unlink()
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("epochs: 2", "epochs: 4"))
    checkpoint = (run / "checkpoints" / "last.ckpt").read_bytes()
    result = warm_proxemic("train", "--resume", run, largest_file=200_000)
    assert_refused(result, ["could not be written", "disk is full", "--resume"])
    assert (run / "checkpoints" / "last.ckpt").read_bytes() == checkpoint


def test_two_that_work_in_one_directory(images: Path, tmp_path: Path, here: Here) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", images)
    run = tmp_path / "run"
    both = [warm_start("train", "--recipe", recipe, "--out", run) for _ in range(2)]
    results = [process.communicate(120) for process in both]
    assert sorted([process.returncode for process in both], key=str) == [0, 2], results
    (run / "metrics.json").unlink()
    with exclusive_lock(run / "checkpoints"):
        result = here("train", "--resume", run)
    assert_refused(result, [f"Another process works in {run}"])
    assert "continue" not in result.stderr
    assert not (run / "metrics.json").exists()


def test_an_image_that_vanishes_in_training_is_named(images: Path, tmp_path: Path) -> None:
    root = tmp_path / "folder"
    shutil.copytree(images, root)
    recipe = write_recipe(tmp_path / "tiny.yaml", root)
    program = (
        "import sys, pathlib, proxemic.data.sources.image_folder as folder; from proxemic.cli import main\n"
        "read = folder.OwnImages.load\n"
        "def load(self):\n"
        "    splits = read(self); pathlib.Path(splits.train.pixels.paths[0]).unlink(); return splits\n"
        "folder.OwnImages.load = load\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["train", "--recipe", str(recipe), "--out", str(tmp_path / "run"), "--batches.workers", "2"]
    result = warm.run("-c", program, *words)
    assert_refused(result, ["0.png cannot be read as an image: no such file"])
    assert len(result.stderr) < 300

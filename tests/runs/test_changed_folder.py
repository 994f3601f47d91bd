"""Runs on a folder whose pictures come and go after the run began: nothing is trained or split otherwise."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import Here, assert_refused
from images import write_folder, write_recipe
from proxemic.data import OwnImages
from proxemic.runs.directory import split_fingerprint


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, and a run on it with wrong labels, which its split must not take for the images' own."""
    from proxemic import train

    folder = tmp_path_factory.mktemp("changed")
    recipe = write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))
    train(recipe, folder / "run", overrides={"training.epochs": 1, "training.label_noise": 0.2}, progress=False)
    return folder


@pytest.fixture
def changed(begun: Path, tmp_path: Path) -> Path:
    """The same after each class has got another image, and a class has come."""
    shutil.copytree(begun, tmp_path / "later")
    images, recipe = tmp_path / "later" / "images", tmp_path / "later" / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(begun), str(tmp_path / "later")))
    for folder in [*images.iterdir()]:
        shutil.copy(folder / "3.png", folder / "later.png")
    shutil.copytree(images / "class 00", images / "new class")
    return tmp_path / "later"


def own_test(run: Path) -> dict[str, float]:
    return json.loads((run / "metrics.json").read_text())["test"]


def test_later_images_are_left_out_or_join_their_class(changed: Path, here: Here) -> None:
    run = changed / "run"
    left = here("evaluate", run, "--json")
    assert left.returncode == 0, left.stderr
    found = json.loads(left.stdout)
    assert (found["test"], found["images"]) == (own_test(run), 24)
    assert "19 (class 00/later.png" in left.stderr
    joined = here("evaluate", run, "--new-images", "join", "--json")
    found = json.loads(joined.stdout)
    assert (found["classes"], found["images"]) == (4, 28)
    assert "7 (new class/0.png" in joined.stderr
    for words, images in (((), 18), (("--new-images", "join"), 21)):
        calibrated = here("calibrate", run, *words, "--format", "json")
        assert calibrated.returncode == 0, calibrated.stderr
        assert json.loads(calibrated.stdout)["images"] == images  # three classes of validation
        reported = here("report", run, *words)
        assert reported.returncode == 0, reported.stderr
        assert "without images" not in reported.stderr
    recorded = f"{100 * own_test(run)['map@r']:.2f}"
    assert recorded not in (run / "report.html").read_text()
    assert here("report", run).returncode == 0
    assert recorded in (run / "report.html").read_text()


def test_missing_images_are_named(changed: Path, here: Here) -> None:
    run, splits = changed / "run", json.loads((changed / "run" / "classes.json").read_text())
    shutil.rmtree(changed / "images" / splits["test"][0])
    (changed / "images" / splits["train"][0] / "4.png").unlink()
    result = here("evaluate", run, "--json")
    assert json.loads(result.stdout)["images"] == 18
    assert f"7 of 72 ({splits['train'][0]}/4.png" in result.stderr or f"{splits['test'][0]}/0.png" in result.stderr
    (run / "metrics.json").unlink()
    assert_refused(here("train", "--resume", run), ["7 of 72", f"{splits['test'][0]}/0.png"])
    for name in splits["test"][1:]:
        shutil.rmtree(changed / "images" / name)
    assert_refused(here("evaluate", run), ["test", f"{splits['test'][0]}/0.png"])


def test_a_resumed_run_never_takes_later_images(begun: Path, changed: Path, here: Here) -> None:
    run = changed / "run"
    before = own_test(run)
    (run / "metrics.json").unlink()
    shutil.rmtree(run / "checkpoints")
    (run / "history.csv").unlink()
    assert here("train", "--resume", run).returncode == 0
    assert own_test(run) == before
    losses = [(path / "history.csv").read_text().split(",")[:-1] for path in (run, begun / "run")]
    assert losses[0] == losses[1]
    assert (run / "loss.safetensors").read_bytes() == (begun / "run" / "loss.safetensors").read_bytes()


def test_images_where_flags_of_other_data_are_given(changed: Path, here: Here) -> None:
    run, other = changed / "run", write_folder(changed / "other", classes=3)
    join = ("--new-images", "join")
    assert_refused(here("evaluate", run, "--data.root", other, *join), ["--new-images"])
    assert_refused(here("evaluate", run, "--split", "all", *join), ["--new-images"])
    assert_refused(here("calibrate", run, "--data.root", other, *join), ["new_images"])


def test_runs_begun_with_other_splits_are_not_compared(begun: Path, tmp_path: Path, here: Here) -> None:
    other = tmp_path / "other"
    shutil.copytree(begun / "run", other)
    assert here("evaluate", begun / "run", other).returncode == 0
    environment = json.loads((other / "environment.json").read_text())
    (other / "environment.json").write_text(json.dumps(environment | {"images": "another split"}))
    assert_refused(here("evaluate", begun / "run", other), [str(other), "another split"])


def test_a_split_is_found_again_in_a_table_in_another_order_and_place(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", images=3)
    paths = [path.relative_to(tmp_path) for path in sorted((tmp_path / "images").rglob("*.png"))]

    def write(folder: Path, lines: list[str]) -> OwnImages:
        (folder / "table.csv").write_text("\n".join(["path,label", *lines]))
        return OwnImages(folder / "table.csv", hold_out="images", test_fraction=0.4, validation_fraction=0.0)

    lines = [f"{path},{path.parent.name}" for path in paths]
    source = write(tmp_path, lines)
    with pytest.raises(ValueError, match="two are to be left"):
        source.load()
    source = replace(source, hold_out="classes")
    splits = source.load()
    assert splits.rows is not None
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "images", moved / "images")
    absolute = [f"{moved}/{line}" for line in reversed(lines)]
    for again in (write(tmp_path, lines[::-1]), write(moved, lines), write(moved, absolute)):
        found = again.load_again(splits.rows, complete=True)
        assert found.notes == splits.notes
        assert split_fingerprint(found) == split_fingerprint(splits)
    changed = write(tmp_path, [*lines[:-1], lines[-1].replace(",class 11", ",class 10")])
    with pytest.raises(ValueError, match=r"1 of 36 \(images/class 11/2.png\)"):
        changed.load_again(splits.rows, complete=True)
    parts = changed.load_again(splits.rows)
    joined = changed.load_again(splits.rows, "join")
    (split,) = {
        split
        for label, split in zip(splits.rows.labels, splits.rows.texts("split"), strict=True)
        if label == "class 10"
    }
    assert split is not None
    more = {name: len(getattr(joined, name)) - len(getattr(parts, name)) for name in ("train", "test")}
    assert more == {"train": 0, "test": 0} | {split: 1}

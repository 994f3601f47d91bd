"""Recipes of a comparison: their names, the data set and the loss that they stand for."""

from pathlib import Path

from comparisons import entry
from proxemic.studies.comparison.entries import read_entry
from proxemic.studies.comparison.run import plan_comparison


def test_recipes_stand_with_those_of_the_same_test_images(recipes: list[str], tmp_path: Path) -> None:
    text = Path(recipes[0]).read_text()
    for name, fraction, held_out in (("a", 0.34, 0.34), ("b", 0.34, 0.5), ("c", 0.5, 0.34)):
        (tmp_path / name).mkdir()
        changed = text.replace("test_fraction: 0.34", f"test_fraction: {fraction}")
        (tmp_path / name / "mine.yaml").write_text(
            changed.replace("validation_fraction: 0.34", f"validation_fraction: {held_out}")
        )
    names = ["glyphs-small", "glyphs-small/softmax", *(f"{tmp_path}/{name}/mine.yaml" for name in "abc")]
    entries = plan_comparison(names, [0], tmp_path / "out").entries
    assert [(entry.dataset, entry.slug, entry.title, entry.label) for entry in entries] == [
        ("glyphs-small", "glyphs-small", "glyphs-small", "glyphs-small"),
        ("glyphs-small", "glyphs-small-softmax", "glyphs-small/softmax", "softmax"),
        ("own-images", "mine", "mine.yaml", "mine.yaml"),
        ("own-images", "mine-2", "mine-2.yaml", "mine-2.yaml"),
        ("own-images (2)", "mine-3", "mine-3.yaml", "mine-3.yaml"),
    ]
    assert [entry.loss for entry in entries][1:3] == ["NormalizedSoftmaxLoss", "AllPairMultiProxyAnchorLoss, K = 2"]


def test_the_loss_is_named() -> None:
    flags = ["--loss.regularizers", '[{"class_path": "proxemic.losses.MeanProxyNorm", "init_args": {"weight": 1}}]']
    assert read_entry("glyphs-small/softmax", flags).loss == "NormalizedSoftmaxLoss + MeanProxyNorm"
    assert read_entry("glyphs-small/contrastive", []).loss == "ContrastiveLoss"


def test_labels_stay_apart() -> None:
    names = ("glyphs-small", "cub/arcface", "cub/reality-check/arcface")
    assert [entry(name).label for name in names] == ["glyphs-small", "arcface", "reality-check/arcface"]

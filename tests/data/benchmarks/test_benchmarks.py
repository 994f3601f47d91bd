"""Tests that all data sets on disk share, with a miniature of each: complete, packed, cut short and shuffled."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.io import loadmat, savemat
from torchvision.datasets.utils import calculate_md5

from data.benchmarks.miniature import pack, write_cars, write_cub, write_in_shop, write_sop
from data.benchmarks.site import Site, serve
from proxemic.data import CUB200, Cars196, FilePixels, ImageSet, InShop, StanfordOnlineProducts
from proxemic.data.benchmarks import AbsentError, Benchmark, Facts, downloads, prepare

COUNTS = {"train classes": 4, "train images": 16, "test classes": 4, "test images": 16}
WRITERS: dict[type[Benchmark], Callable[[Path], Path]] = {
    CUB200: write_cub,
    Cars196: write_cars,
    StanfordOnlineProducts: write_sop,
    InShop: write_in_shop,
}
ARCHIVES = {
    CUB200: "CUB_200_2011",
    Cars196: "car_ims",
    StanfordOnlineProducts: "Stanford_Online_Products",
    InShop: "Img/img",
}
"""The folder that is packed in the original."""
LISTINGS = {
    CUB200: ["CUB_200_2011/images.txt", "CUB_200_2011/image_class_labels.txt", "CUB_200_2011/classes.txt"],
    Cars196: ["cars_annos.mat"],
    StanfordOnlineProducts: [f"Stanford_Online_Products/Ebay_{part}.txt" for part in ("train", "test")],
    InShop: ["Eval/list_eval_partition.txt"],
}


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[type[Benchmark], Path]:
    return {source: write(tmp_path_factory.mktemp(source.facts.key)) for source, write in WRITERS.items()}


@pytest.fixture(params=WRITERS, ids=lambda source: source.facts.key)
def source(request: pytest.FixtureRequest) -> type[Benchmark]:
    return request.param


@pytest.fixture
def root(
    source: type[Benchmark], originals: dict[type[Benchmark], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of the miniature, whose counts are treated as the official ones."""
    root = Path(shutil.copytree(originals[source], tmp_path / "root"))
    be_official(source, root, monkeypatch)
    return root


def be_official(source: type[Benchmark], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = {"query images": 8, "gallery images": 8} if source is InShop else {}

    def known(facts: Facts) -> Facts:
        files = tuple(
            replace(file, md5=calculate_md5(root / file.name) if (root / file.name).is_file() else None)
            for file in facts.files
        )
        return replace(facts, counts=COUNTS | roles, files=files)

    monkeypatch.setattr(source, "facts", known(source.facts))


def paths(images: ImageSet) -> list[str]:
    assert isinstance(images.pixels, FilePixels)
    return [Path(path).as_posix() for path in images.pixels.paths]


def test_official_counts() -> None:
    """As the papers print them."""
    total = {
        source: source.facts.counts["train images"] + source.facts.counts["test images"]
        for source in (CUB200, Cars196, StanfordOnlineProducts, InShop)
    }
    assert total == {CUB200: 11788, Cars196: 16185, StanfordOnlineProducts: 120053, InShop: 52712}
    assert InShop.facts.counts["query images"] + InShop.facts.counts["gallery images"] == 26830


def test_official_splits(source: type[Benchmark], root: Path) -> None:
    places = [root, *([root / ARCHIVES[source]] if source in (CUB200, StanfordOnlineProducts) else [])]
    names = set[str]()
    for place in places:
        splits = source(place, validation_fraction=0.0).load()
        assert (splits.validation, splits.notes) == (None, ())
        labels = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
        assert splits.train.labels.tolist() == splits.test_images.labels.tolist() == labels
        assert not set(splits.train.class_names) & set(splits.test_images.class_names)
        names = {*splits.train.class_names}
        for images in (splits.train, splits.test_images):
            assert images.pictures[15].size == (48, 40)
            assert images.pictures[0].mode == "RGB"
    held = source(root, split_seed=3).load()
    assert held.validation is not None
    assert (held.train.num_classes, held.validation.num_classes) == (2, 2)
    assert {*held.train.class_names, *held.validation.class_names} == names
    assert held.validation.is_query is None


def test_names_and_files_belong_together(source: type[Benchmark], root: Path) -> None:
    splits = source(root, validation_fraction=0.0).load()
    test = splits.test_images
    names = [test.class_names[label] for label in test.labels]
    if source is CUB200:
        assert splits.train.class_names == tuple(f"00{n}.Bird_{n}" for n in range(1, 5))
        assert [path.split("/")[-2] for path in paths(test)] == names
    elif source is Cars196:
        assert test.class_names == tuple(f"Maker Model {n} 2012" for n in range(5, 9))
        assert [path[-10:] for path in paths(test)] == [f"{n:06d}.jpg" for n in range(17, 33)]
    elif source is StanfordOnlineProducts:
        assert [path[-len(name) - 6 : -6] for path, name in zip(paths(test), names, strict=True)] == names
        assert test.categories is not None
        assert test.rows.texts("category") == [name.partition("_final")[0] for name in names]
    else:
        assert [path.split("/")[-2] for path in paths(test)] == names
        assert splits.train.is_query is None
        assert test.is_query is not None
        assert test.is_gallery is not None
        assert test.is_query.tolist() == [True, True, False, False] * 4
        assert torch.equal(test.is_gallery, ~test.is_query)


def test_nothing_there(source: type[Benchmark], tmp_path: Path) -> None:
    key = source.facts.key
    with pytest.raises(ValueError, match=rf"data\.root is missing: .*prepare {key} --root DIR"):
        source().load()
    with pytest.raises(AbsentError, match=rf"proxemic datasets prepare {key} --root {tmp_path}") as refusal:
        source(tmp_path).load()
    if source.facts.by_hand:
        assert source.facts.page in str(refusal.value)
        assert all(file.name in str(refusal.value) for file in source.facts.files)


def test_a_missing_image_and_a_missing_folder(source: type[Benchmark], root: Path) -> None:
    gone = Path(paths(source(root, validation_fraction=0.0).load().test_images)[2])
    gone.unlink()
    with pytest.raises(
        ValueError, match=rf"1 of 32 images missing \(.*{gone.name}\); test images 15 instead of 16"
    ) as refusal:
        source(root).load()
    assert "set check_counts to false (--data.check_counts false)" in str(refusal.value)
    splits = source(root, check_counts=False).load()
    assert len(splits.test_images) == 15
    assert splits.notes[0].startswith(f"Not the {source.facts.title} of the papers")
    assert gone.name in splits.notes[0]
    shutil.rmtree(gone.parent)
    words = rf"1 folders missing \(.*{gone.parent.name}\); \d+ of 32 images missing"
    with pytest.raises(ValueError, match="has no car_ims" if source is Cars196 else words):  # its only folder
        source(root).load()


def swap(path: Path, column: int, first: int, last: int, skip: int = 0) -> None:
    """Exchange a field of two lines."""
    lines = path.read_text().splitlines()
    one, other = lines[skip + first].split(), lines[skip + last].split()
    one[column], other[column] = other[column], one[column]
    lines[skip + first], lines[skip + last] = " ".join(one), " ".join(other)
    path.write_text("\n".join(lines) + "\n")


def shuffle_cars(root: Path) -> None:
    mat = loadmat(root / "cars_annos.mat", squeeze_me=True)
    labels = mat["annotations"]["class"]
    labels[0], labels[-1] = labels[-1], labels[0]
    savemat(root / "cars_annos.mat", {key: mat[key] for key in ("annotations", "class_names")})


SHUFFLES: dict[type[Benchmark], list[tuple[Callable[[Path], object], str]]] = {
    CUB200: [
        (lambda root: swap(root / "CUB_200_2011/image_class_labels.txt", 1, 0, 31), "damaged or shuffled"),
        (lambda root: swap(root / "CUB_200_2011/images.txt", 1, 0, 5), "damaged or shuffled"),
    ],
    Cars196: [(shuffle_cars, r"cars_annos\.mat is not the published one, by its MD5")],
    StanfordOnlineProducts: [
        (
            lambda root: swap(root / "Stanford_Online_Products/Ebay_train.txt", 1, 0, 15, skip=1),
            "have a class_id that is not that of their item",
        ),
    ],
    InShop: [
        (lambda root: swap(root / "Eval/list_eval_partition.txt", 1, 0, 8, skip=2), "damaged or shuffled"),
        (lambda root: swap(root / "Eval/list_eval_partition.txt", 2, 0, 31, skip=2), "in both training and test"),
    ],
}


def test_shuffled_annotations(source: type[Benchmark], root: Path, tmp_path: Path) -> None:
    for number, (shuffle, message) in enumerate(SHUFFLES[source]):
        copy = Path(shutil.copytree(root, tmp_path / str(number)))
        shuffle(copy)
        with pytest.raises(ValueError, match=message):
            source(copy).load()


def test_annotations_cut_short_damaged_or_repeated(source: type[Benchmark], root: Path) -> None:
    for name in LISTINGS[source]:
        whole = (root / name).read_bytes()
        for end in (0, 1, len(whole) // 2, len(whole.rstrip()) - 3):
            (root / name).write_bytes(whole[:end])
            with pytest.raises(ValueError, match=r"damaged|cut short|missing|instead of|is not that|shuffled"):
                source(root).load()
        (root / name).write_bytes(b"\xff\xfe\x00 no text")
        with pytest.raises(ValueError, match="damaged"):
            source(root).load()
        if source in (StanfordOnlineProducts, InShop):
            (root / name).write_bytes(whole + whole.rstrip().splitlines()[-1] + b"\n")
            with pytest.raises(ValueError, match="images more than once"):
                source(root).load()
        (root / name).unlink()
        with pytest.raises(ValueError, match=r"is missing|has no "):
            source(root).load()
        (root / name).write_bytes(whole)
    source(root).load()


def test_in_shop_without_its_folders_and_paths_that_lead_outside(
    originals: dict[type[Benchmark], Path], tmp_path: Path
) -> None:
    listing = tmp_path / "list_eval_partition.txt"
    listing.write_bytes((originals[InShop] / "Eval/list_eval_partition.txt").read_bytes())
    shutil.copytree(originals[InShop] / "Img" / "img", tmp_path / "img")
    assert len(InShop(tmp_path, check_counts=False).load().test_images) == 16
    listing.write_text(listing.read_text().replace("img/WOMEN", "img/../../WOMEN", 1))
    with pytest.raises(ValueError, match="leads out of"):
        InShop(tmp_path).load()


@pytest.mark.parametrize("nested", [False, True])
def test_cars_in_two_parts(nested: bool, originals: dict[type[Benchmark], Path], tmp_path: Path) -> None:
    root = write_cars(tmp_path / "stanford_cars", parts=True).parent
    if nested:
        for part in ("cars_train", "cars_test"):
            (root / "stanford_cars" / part).rename(root / "images")
            (root / "stanford_cars" / part).mkdir()
            (root / "images").rename(root / "stanford_cars" / part / part)
    for place in (root, root / "stanford_cars"):
        splits = Cars196(place, 0.0, check_counts=False).load()
        pooled = Cars196(originals[Cars196], 0.0, check_counts=False).load()
        for part, other in ((splits.train, pooled.train), (splits.test_images, pooled.test_images)):
            assert part.class_names == other.class_names
            assert part.labels.bincount().tolist() == [4, 4, 4, 4]
            part.pictures[15].load()
    (root / "stanford_cars" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(ValueError, match=r"cars_test_annos_withlabels\.mat is missing: fetch it"):
        Cars196(root).load()


def test_a_sale_listed_anew_is_no_damage(tmp_path: Path) -> None:
    """One image in 128 has another item number; in a shuffled file nearly all have."""
    root = write_sop(tmp_path, classes=8, images=16)
    tree = root / "Stanford_Online_Products"
    (tree / "bicycle_final" / "111085122802_0.JPG").rename(tree / "bicycle_final" / "999999999999_0.JPG")
    listing = tree / "Ebay_train.txt"
    listing.write_text(listing.read_text().replace("111085122802_0", "999999999999_0"))
    assert len(StanfordOnlineProducts(root, check_counts=False).load().test_images) == 64


@pytest.fixture
def packed(source: type[Benchmark], root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The miniature's original files only."""
    tree = root / ARCHIVES[source]
    pack(tree, root / source.facts.files[0].name)
    shutil.rmtree(tree)
    be_official(source, root, monkeypatch)
    return root


def test_archives_are_prepared(source: type[Benchmark], packed: Path) -> None:
    with pytest.raises(AbsentError, match=rf"is not unpacked: run proxemic datasets prepare {source.facts.key}"):
        source(packed).load()
    for _ in range(2):
        assert prepare(source(packed)).counts == source.facts.counts
    assert len(source(packed).load().test_images) == 16
    shutil.rmtree(packed / ARCHIVES[source])
    file = source.facts.files[0]
    (packed / file.name).rename(packed / Path(file.name).name)  # without a folder of its own
    assert prepare(source(packed)).counts == source.facts.counts
    if source is not Cars196:
        (packed / LISTINGS[source][0]).unlink()
        words = r"must be fetched by hand" if source is InShop else rf"{ARCHIVES[source]} lacks .*delete it and run"
        with pytest.raises(AbsentError, match=words):
            prepare(source(packed))


def test_an_archive_cut_short(source: type[Benchmark], packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = packed / source.facts.files[0].name
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"damaged, cut short or not the original, by its MD5: delete it and run"):
        prepare(source(packed))
    first, *others = source.facts.files
    monkeypatch.setattr(source, "facts", replace(source.facts, files=(replace(first, md5=None), *others)))
    with pytest.raises(ValueError, match=r"is damaged or cut short \("):
        prepare(source(packed))
    assert not (packed / ARCHIVES[source]).exists()


@pytest.fixture
def mirror(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(downloads, "_PAUSE", 0.001)
    files = {path.relative_to(packed).as_posix(): path.read_bytes() for path in packed.rglob("*") if path.is_file()}
    with serve(Site(files)) as site:
        yield site


def test_downloads_are_prepared(
    source: type[Benchmark], mirror: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert prepare(source(tmp_path / "new"), url=mirror.url).counts == source.facts.counts
        assert len(mirror.asked) == len(source.facts.files)
    if source.facts.by_hand:
        with pytest.raises(AbsentError, match="must be fetched by hand"):
            prepare(source(tmp_path / "other"))
        return
    (file,) = source.facts.files
    prepare(source(tmp_path / "file"), url=f"{mirror.url}/{file.name}")
    files = (replace(file, url=f"{mirror.url}/{file.name}?download=1"),)
    monkeypatch.setattr(source, "facts", replace(source.facts, files=files))
    assert prepare(source(tmp_path / "other")).counts == source.facts.counts

"""Cars196: photographs of cars."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from proxemic.data.benchmarks.annotations import Listed, official_sets
from proxemic.data.benchmarks.benchmark import Benchmark, Facts, Official, OriginalFile
from proxemic.extras import optional_dependency
from proxemic.files import has_md5

_ANNOTATIONS = OriginalFile("cars_annos.mat", md5="b407c6086d669747186bd1d764ff9dbc")
_TEST_LABELS = OriginalFile("cars_test_annos_withlabels.mat", md5="b0a2b23655a3edd16d84508592a98d10")


@dataclass(frozen=True)
class Cars196(Benchmark):
    """16,185 photographs of 196 models of cars, both original splits pooled: the first 98 train, the others test.

    The original host is gone. Two layouts are read: `car_ims` with `cars_annos.mat`, or torchvision's `cars_train`,
    `cars_test`, `devkit` and `cars_test_annos_withlabels.mat`, also within a folder `stanford_cars`.

    Args:
        root: The folder of either layout.
        validation_fraction: Fraction of the training classes held out for validation, 0 (none) to below 1.
        split_seed: Seed of the choice of validation classes.
        check_counts: Refuse a copy with missing images, other counts than the papers', or annotations whose checksum is
            not the published one; if false, only a note says so.

    Source: Krause et al., "3D Object Representations for Fine-Grained Categorization", 3dRR-13; split of Song et al.,
    "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016.

    >>> Cars196.facts.counts["test images"]
    8131
    """

    facts: ClassVar[Facts] = Facts(
        key="cars",
        title="Cars196",
        counts={"train classes": 98, "train images": 8054, "test classes": 98, "test images": 8131},
        files=(OriginalFile("car_ims.tgz", md5="d5c8f0aa497503f355e17dc7886c3f14", tree="car_ims"), _ANNOTATIONS),
        page="https://github.com/pytorch/vision/issues/7545",
        by_hand="the original host is gone, but https://github.com/pytorch/vision/issues/7545 names copies; put "
        "cars_train, cars_test, devkit and cars_test_annos_withlabels.mat (or car_ims.tgz and cars_annos.mat)",
        mirror_files=(
            OriginalFile("cars_train.tgz", md5="065e5b463ae28d29e77c1b4b166cfe61", tree="cars_train"),
            OriginalFile("cars_test.tgz", md5="4ce7ebf6a94d07f1952d94dd34c4d501", tree="cars_test"),
            OriginalFile("car_devkit.tgz", md5="c3b158d763b6e2245038c8ad08e45376", tree="devkit"),
            _TEST_LABELS,
        ),
    )

    def read(self) -> Official:
        images = self.find("car_ims", "devkit", "stanford_cars/car_ims", "stanford_cars/devkit")
        folder = images.parent
        if images.name == "car_ims":
            listing = folder / "cars_annos.mat"
            # car_ims/000001.jpg
            return self._official(folder, list(_pairs(listing, "relative_im_path")), listing, listing)
        listing = next((place for place in folder.glob(f"*/{_TEST_LABELS.name}")), folder / _TEST_LABELS.name)
        pairs = []
        for part, annotations in (("cars_train", folder / "devkit" / "cars_train_annos.mat"), ("cars_test", listing)):
            # a popular copy has cars_train/cars_train/00001.jpg
            images = f"{part}/{part}" if (folder / part / part).is_dir() else part
            pairs += [(f"{images}/{name}", label) for name, label in _pairs(annotations, "fname")]
        return self._official(folder, pairs, listing, folder / "devkit" / "cars_meta.mat")

    def _official(self, folder: Path, pairs: list[tuple[str, int]], listing: Path, meta: Path) -> Official:
        names = {number: str(name) for number, name in enumerate(_read_mat(meta, "class_names"), start=1)}
        rows = [Listed(path, label, test=label > len(names) // 2) for path, label in pairs]
        published = next(file.md5 for file in self.files if file.name == listing.name)
        flaws = [] if has_md5(listing, published) else [f"{listing.name} is not the published one, by its MD5"]
        return official_sets(folder, rows, names, listing, flaws)


def _pairs(path: Path, field: str) -> Iterator[tuple[str, int]]:
    annotations = _read_mat(path, "annotations")
    if not {field, "class"} <= set(annotations.dtype.names or ()):
        raise ValueError(f"{path} lacks the {field} and class of each image: it is another file, or has no labels.")
    for name, label in zip(annotations[field], annotations["class"], strict=True):
        yield str(name), int(label)


def _read_mat(path: Path, name: str) -> Any:
    with optional_dependency("train"):
        from scipy.io import loadmat
    if not path.is_file():
        raise ValueError(f"{path} is missing: fetch it, as {Cars196.facts.page} says.")
    try:
        # A MATLAB 5 file contains arrays and text, but no code.
        return loadmat(path, squeeze_me=True, variable_names=[name])[name]
    except Exception as error:  # its parser raises many errors: OSError, TypeError, zlib.error, KeyError, ...
        raise ValueError(f"{path} cannot be read as a MATLAB file with {name}: it is damaged or cut short.") from error

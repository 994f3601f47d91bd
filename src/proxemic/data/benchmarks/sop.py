"""Stanford Online Products: photographs from offers on eBay."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from proxemic.data.benchmarks.annotations import Listed, check_unique, official_sets, read_fields, whole_number
from proxemic.data.benchmarks.benchmark import Benchmark, Facts, Official, OriginalFile

_HEADER = "image_id class_id super_class_id path"
_MOST_STRAYS = 0.01  # an item listed anew may be one class under two numbers; a shuffled file has nearly all astray


@dataclass(frozen=True)
class StanfordOnlineProducts(Benchmark):
    """120,053 photographs of 22,634 products of 12 kinds, the categories of the images, such as ``bicycle``.

    Args:
        root: The folder with the extracted `Stanford_Online_Products`, or that folder.
        validation_fraction: Part of the training classes held out for validation, 0 (none) to below 1.
        split_seed: Which training classes validate.
        check_counts: Refuse a copy with missing images or other counts than the papers'; otherwise a note says so.

    Source: Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016.

    >>> StanfordOnlineProducts.facts.counts["train classes"]
    11318
    """

    facts: ClassVar[Facts] = Facts(
        key="sop",
        title="Stanford Online Products",
        counts={"train classes": 11318, "train images": 59551, "test classes": 11316, "test images": 60502},
        files=(
            OriginalFile(
                "Stanford_Online_Products.zip",
                md5="7f73d41a2f44250d4779881525aea32e",
                url="http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                tree="Stanford_Online_Products",
            ),
        ),
        page="https://cvgl.stanford.edu/projects/lifted_struct/",
    )

    def read(self) -> Official:
        listing = self.find("Stanford_Online_Products/Ebay_train.txt", "Ebay_train.txt")
        folder = listing.parent
        images: list[int] = []
        kinds: list[int] = []
        rows: list[Listed] = []
        for part, test in ((listing, False), (folder / "Ebay_test.txt", True)):
            for image, label, kind, path in read_fields(part, 4, header=_HEADER):
                images.append(whole_number(image, part))
                kinds.append(whole_number(kind, part))
                category = path.partition("/")[0].removesuffix("_final")
                rows.append(Listed(path, whole_number(label, part), test, category=category))
        both = folder / "Ebay_train.txt and Ebay_test.txt"
        check_unique(images, "image numbers", both)
        # bicycle_final/111085122871_0.JPG: the kind, the number of the item, and that of its photograph
        items = [row.path.rpartition("_")[0] for row in rows]
        _check_agreement(both, "class_id", "item", [row.label for row in rows], items)
        _check_agreement(both, "super_class_id", "folder", kinds, [row.category for row in rows])
        names = {row.label: item for row, item in zip(rows, items, strict=True)}
        return official_sets(folder, rows, names, both)


def _check_agreement(
    listing: Path, number: str, name: str, numbers: Sequence[Hashable], names: Sequence[Hashable]
) -> None:
    pairs = Counter(zip(numbers, names, strict=True))
    usual_name, usual_number = dict[Hashable, Hashable](), dict[Hashable, Hashable]()
    for (one, other), _ in pairs.most_common():
        usual_name.setdefault(one, other)
        usual_number.setdefault(other, one)
    astray = {
        (one, other): count
        for (one, other), count in pairs.items()
        if usual_name[one] != other or usual_number[other] != one
    }
    if sum(astray.values()) > _MOST_STRAYS * len(numbers):
        one, other = next(iter(astray))
        raise ValueError(
            f"{listing}: {sum(astray.values()):,} images have a {number} that is not that of their {name}, such as "
            f"{one} for {other}: a file is damaged or shuffled."
        )

"""Stanford Online Products: photographs from offers on eBay."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from proxemic.data.benchmarks.annotations import Listed, official_sets, read_fields, whole_number
from proxemic.data.benchmarks.benchmark import Benchmark, Facts, Official, OriginalFile

_HEADER = "image_id class_id super_class_id path"
_MOST_STRAYS = 0.01  # of the images


@dataclass(frozen=True)
class StanfordOnlineProducts(Benchmark):
    """120,053 photographs of 22,634 products; the categories are 12 kinds of product, such as ``bicycle``.

    Args:
        root: The folder with the extracted `Stanford_Online_Products`, or that folder.
        validation_fraction: Fraction of the training classes held out for validation, 0 (none) to below 1.
        split_seed: Seed of the choice of validation classes.
        check_counts: Refuse a copy with missing images or other counts than the papers'; if false, only a note says so.

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
        rows: list[Listed] = []
        items: list[str] = []
        for part, test in ((listing, False), (folder / "Ebay_test.txt", True)):
            for _, label, _, path in read_fields(part, 4, header=_HEADER):
                # bicycle_final/111085122871_0.JPG: the category, the number of the item and of its photograph
                category = path.partition("/")[0].removesuffix("_final")
                rows.append(Listed(path, whole_number(label, part), test, category=category))
                items.append(path.rpartition("_")[0])
        both = folder / "Ebay_train.txt and Ebay_test.txt"
        # A few items may have two class numbers by mistake; in a shuffled file nearly all are wrong.
        pairs = Counter((row.label, item) for row, item in zip(rows, items, strict=True))
        names = {label: item for (label, item), _ in reversed(pairs.most_common())}
        labels = {item: label for (label, item), _ in reversed(pairs.most_common())}
        astray = [pair for pair in pairs if names[pair[0]] != pair[1] or labels[pair[1]] != pair[0]]
        count = sum(pairs[pair] for pair in astray)
        if count > _MOST_STRAYS * len(rows):
            raise ValueError(
                f"{both}: {count:,} images have a class_id that is not that of their item, such as {astray[0][0]} for "
                f"{astray[0][1]}: a file is damaged or shuffled."
            )
        return official_sets(folder, rows, names, both)

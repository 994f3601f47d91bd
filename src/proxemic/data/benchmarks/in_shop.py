"""In-Shop Clothes Retrieval of DeepFashion."""

from dataclasses import dataclass
from typing import ClassVar

from proxemic.data.benchmarks.annotations import Listed, official_sets, read_fields, whole_number
from proxemic.data.benchmarks.benchmark import Benchmark, Facts, Official, OriginalFile

_HEADER = "image_name item_id evaluation_status"


@dataclass(frozen=True)
class InShop(Benchmark):
    """52,712 photographs of 7,982 items of clothing; test images are either queries or in the gallery.

    Training and validation images have no such roles: each image is both a query and in the gallery.

    Args:
        root: The folder with `Eval/list_eval_partition.txt` and the extracted `Img/img`; the folders `Eval`
            and `Img` may be missing around them.
        validation_fraction: Fraction of the training classes held out for validation, 0 (none) to below 1.
        split_seed: Seed of the choice of validation classes.
        check_counts: Refuse a copy with missing images or other counts than the papers'; if false, only a note says so.

    Source: Liu et al., "DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich Annotations", CVPR
    2016.

    >>> InShop.facts.counts["query images"]
    14218
    """

    facts: ClassVar[Facts] = Facts(
        key="in-shop",
        title="In-Shop Clothes Retrieval",
        counts={
            "train classes": 3997,
            "train images": 25882,
            "test classes": 3985,
            "test images": 26830,
            "query images": 14218,
            "gallery images": 12612,
        },
        files=(OriginalFile("Img/img.zip", tree="img"), OriginalFile("Eval/list_eval_partition.txt")),
        page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        by_hand="agree to its terms at https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html, and put "
        "Img/img.zip and Eval/list_eval_partition.txt",
    )

    def read(self) -> Official:
        images = self.find("Img/img", "img")
        listing = self.find("Eval/list_eval_partition.txt", "list_eval_partition.txt")
        count = next(read_fields(listing, 1), ["0"])[0]
        rows: list[Listed] = []
        for path, item, status in read_fields(listing, 3, header=_HEADER, skip=1):
            # img/WOMEN/Dresses/id_00000002/02_1_front.jpg
            if f"/{item}/" not in path or status not in ("train", "query", "gallery"):
                raise ValueError(f"{listing} says that {path} shows {item}, for {status}: it is damaged or shuffled.")
            label = whole_number(item.removeprefix("id_"), listing)
            rows.append(Listed(path, label, status != "train", None if status == "train" else status == "query"))
        cut = len(rows) != whole_number(count, listing)
        flaws = [f"{listing.name} lists {len(rows):,} images, but says it has {count}"] if cut else []
        names = {row.label: f"id_{row.label:08d}" for row in rows}
        return official_sets(images.parent, rows, names, listing, flaws)

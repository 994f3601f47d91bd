"""CUB-200-2011: birds."""

from dataclasses import dataclass
from typing import ClassVar

from proxemic.data.benchmarks.annotations import Listed, official_sets, read_fields, whole_number
from proxemic.data.benchmarks.benchmark import Benchmark, Facts, Official, OriginalFile


@dataclass(frozen=True)
class CUB200(Benchmark):
    """11,788 photographs of 200 species of birds: the first 100 classes train, the others test.

    Args:
        root: The folder with the extracted `CUB_200_2011`, or that folder.
        validation_fraction: Fraction of the training classes held out for validation, 0 (none) to below 1.
        split_seed: Seed of the choice of validation classes.
        check_counts: Refuse a copy with missing images or other counts than the papers'; if false, only a note says so.

    Source: Wah et al., "The Caltech-UCSD Birds-200-2011 Dataset", CNS-TR-2011-001; split of Song et al., "Deep Metric
    Learning via Lifted Structured Feature Embedding", CVPR 2016.

    >>> CUB200.facts.counts["train images"]
    5864
    """

    facts: ClassVar[Facts] = Facts(
        key="cub",
        title="CUB-200-2011",
        counts={"train classes": 100, "train images": 5864, "test classes": 100, "test images": 5924},
        files=(
            OriginalFile(
                "CUB_200_2011.tgz",
                md5="97eceeb196236b17998738112f37df78",
                url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
                tree="CUB_200_2011",
            ),
        ),
        page="https://data.caltech.edu/records/65de6-vp158",
    )

    def read(self) -> Official:
        listing = self.find("CUB_200_2011/images.txt", "images.txt")
        folder = listing.parent
        names, paths, labels = (
            {whole_number(number, folder / name): text for number, text in read_fields(folder / name, 2)}
            for name in ("classes.txt", "images.txt", "image_class_labels.txt")
        )
        if paths.keys() != labels.keys():
            raise ValueError(
                f"{folder} names {len(paths):,} images in images.txt, but {len(labels):,} in image_class_labels.txt, "
                "or others: one is cut short, or of another data set."
            )
        numbers = {image: whole_number(label, folder / "image_class_labels.txt") for image, label in labels.items()}
        for image, path in paths.items():
            # 001.Black_footed_Albatross/Black_Footed_Albatross_0001_796111.jpg
            if path.partition("/")[0] != names.get(numbers[image]) or not path.startswith(f"{numbers[image]:03d}."):
                raise ValueError(
                    f"{folder}: image {image} is {path}, but image_class_labels.txt gives it class {numbers[image]}: "
                    "one of the files is damaged or shuffled."
                )
        half = len(names) // 2
        rows = [Listed(f"images/{path}", numbers[image], numbers[image] > half) for image, path in paths.items()]
        return official_sets(folder, rows, names, listing)

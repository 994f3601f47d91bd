"""Which classes a run was begun with, and where their images were."""

from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path

from proxemic.data import ImageSource, Splits
from proxemic.errors import UserError
from proxemic.files import read_json, write_json

__all__ = ["RunClasses"]


@dataclass(frozen=True)
class RunClasses:
    """The classes that a run was begun with, by name.

    Args:
        root: The absolute path of the folder or table of the images; None for data that have none.
        train: In the order of their labels, which is that of the rows of proxies.
        validation: Held out to choose the epoch; None where there are none.
        test: Held out for the test; None likewise.
    """

    root: str | None
    train: tuple[str, ...]
    validation: tuple[str, ...] | None
    test: tuple[str, ...] | None

    @classmethod
    def of(cls, source: ImageSource, splits: Splits) -> "RunClasses":
        """Those of images, and where they come from."""
        root = getattr(source, "root", None)
        held_out = (None if part is None else part.class_names for part in (splits.validation, splits.test))
        return cls(root and str(Path(root).absolute()), splits.train.class_names, *held_out)

    @classmethod
    def read(cls, path: Path) -> "RunClasses":
        """Read what `write` wrote.

        Raises:
            UserError: If the file is damaged.
        """
        found = read_json(path)
        root, train, *held_out = (found.get(name) for name in ("root", "train", "validation", "test"))
        lists = all(isinstance(part, list | None) for part in held_out)
        if not isinstance(root, str | None) or not isinstance(train, list) or not lists:
            raise UserError(f"{path} is damaged (it names no training classes): put the file back from a copy.")
        return cls(root, tuple(map(str, train)), *(part and tuple(map(str, part)) for part in held_out))

    def write(self, path: Path) -> None:
        """Write a JSON file, whole or not at all."""
        write_json(path, asdict(self))

    def locate(self, source: ImageSource) -> ImageSource:
        """Find the images also from another working directory than the one where the run began.

        Args:
            source: That of the recipe, whose root may be a relative path.

        Returns:
            the source with the absolute root, where there still is something.
        """
        root = getattr(source, "root", None)
        if root is None or Path(root).is_absolute() or self.root is None or not Path(self.root).exists():
            return source
        return replace(source, root=Path(self.root)) if is_dataclass(source) else source

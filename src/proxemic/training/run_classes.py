"""Which classes a run was begun with, and where their images were."""

from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path

from proxemic.data import ImageSource, Splits
from proxemic.errors import UserError
from proxemic.files import read_json


@dataclass(frozen=True)
class RunClasses:
    """The classes that a run was begun with, by name.

    Args:
        root: The absolute path of the folder or table of the images; None for data that have none.
        train: In the order of their labels, which is that of the rows of proxies.
        validation: Held out to choose the epoch; None where there are none.
        test: Held out for the test; None likewise.
        earlier: Trained on by the runs whose weights this one began with.
    """

    root: str | None
    train: tuple[str, ...]
    validation: tuple[str, ...] | None
    test: tuple[str, ...] | None
    earlier: tuple[str, ...] = ()

    @property
    def trained(self) -> frozenset[str]:
        """All classes that the network was trained on, including before this run."""
        return frozenset({*self.train, *self.earlier})

    @classmethod
    def of(cls, source: ImageSource, splits: Splits, earlier: Iterable[str] = ()) -> "RunClasses":
        """Collect the classes of images, where these come from, and what was trained on before."""
        root = getattr(source, "root", None)
        validation, test = (None if part is None else part.class_names for part in (splits.validation, splits.test))
        place = root and str(Path(root).absolute())
        return cls(place, splits.train.class_names, validation, test, tuple(sorted(earlier)))

    @classmethod
    def read(cls, path: Path) -> "RunClasses":
        """Read the ``classes.json`` of a run.

        Raises:
            UserError: If the file is damaged.
        """
        content = read_json(path)
        root, train = content.get("root"), content.get("train")
        names = {name: content.get(name) for name in ("validation", "test", "earlier")}
        lists = all(isinstance(part, list | None) for part in names.values())
        if not isinstance(root, str | None) or not isinstance(train, list) or not lists:
            raise UserError(f"{path} is damaged (it names no training classes): put the file back from a copy.")
        validation, test = (part and tuple(map(str, part)) for part in (names["validation"], names["test"]))
        return cls(root, tuple(map(str, train)), validation, test, tuple(map(str, names["earlier"] or ())))

    def locate(self, source: ImageSource) -> ImageSource:
        """Find the images also from another working directory than the one where the run began.

        Args:
            source: That of the recipe, whose root may be a relative path.

        Returns:
            The source with the absolute root, where that still exists.
        """
        root = getattr(source, "root", None)
        if root is None or Path(root).is_absolute() or self.root is None or not Path(self.root).exists():
            return source
        return replace(source, root=Path(self.root)) if is_dataclass(source) else source

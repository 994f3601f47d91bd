"""Only six formats are opened, whatever a file is called, in every place that opens pictures."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from proxemic.data import read_image
from proxemic.data.reading import UnreadableImageError, examine
from proxemic.image_formats import ENDINGS, FORMATS, FORMATS_TEXT
from proxemic.serve.limits import Refused
from proxemic.serve.pictures import Decoding, check_query, original, thumbnail

PAGE = Path(__file__).parents[1] / "docs" / "own-images.md"


def encoded(kind: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(content, kind)
    return content.getvalue()


@pytest.mark.parametrize("kind", [*FORMATS, "MPO"])
def test_the_formats_are_read_whatever_the_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "picture.eps").write_bytes(encoded(kind))
    assert read_image(tmp_path / "picture.eps").size == examine(tmp_path / "picture.eps")[1] == (32, 32)
    assert read_image(encoded(kind)).size == (32, 32)
    check_query(encoded(kind), 2000)
    assert thumbnail(str(tmp_path / "picture.eps"), ["/"], Decoding(2**20))[0] == "image/jpeg"
    assert original(str(tmp_path / "picture.eps"), ["/"], Decoding(2**20))[1] == encoded(kind)


@pytest.mark.parametrize("kind", ["EPS", "AVIF", "PPM", "TGA", "ICO", "JPEG2000", "PCX", "DIB", "ICNS", "MSP"])
def test_other_formats_are_refused_and_no_program_is_started(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    content = io.BytesIO()
    Image.new("1" if kind == "MSP" else "RGB", (32, 32)).save(content, kind)
    path = tmp_path / "picture.jpg"
    path.write_bytes(content.getvalue())
    for read in (read_image, examine, lambda _: read_image(content.getvalue())):
        with pytest.raises(UnreadableImageError, match=f"its content is not {FORMATS_TEXT}"):
            read(path)
    with pytest.raises(Refused, match=FORMATS_TEXT):
        check_query(content.getvalue(), 2000)
    for give in (thumbnail, original):
        with pytest.raises(Refused, match="no longer there"):
            give(str(path), ["/"], Decoding(2**20))


def test_the_documentation_lists_formats_and_endings() -> None:
    assert f"{FORMATS_TEXT} ({', '.join(f'`{ending}`' for ending in ENDINGS)})" in " ".join(PAGE.read_text().split())

"""Where the Vega of the pages comes from."""

from importlib.metadata import version
from pathlib import Path

import platformdirs
import pytest
import vl_convert

from proxemic.pages import charts


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a bundle that is made in no time."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda _: "a</script><!--")
    return tmp_path / "proxemic" / "pages" / f"vega-{version('vl-convert-python')}.js"


def test_vega_is_put_together_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert charts.vega.__wrapped__()[0] == r"a<\/script><\!--"
    monkeypatch.delattr(vl_convert, "javascript_bundle")
    assert charts.vega.__wrapped__()[0] == cache.read_text() == r"a<\/script><\!--"


def test_a_home_that_cannot_be_written_to_does_not_matter(cache: Path) -> None:
    cache.parents[2].joinpath("proxemic").touch()
    assert charts.vega.__wrapped__()[0] == r"a<\/script><\!--"

"""Draw the documentation's pictures of pages, docs/*.png, from a run of the page *Start in five minutes*.

    proxemic train --recipe glyphs-small/euclidean-softmax --out runs/first
    python docs/make_screenshots.py runs/first

It takes a minute or two and needs Chromium. The characters are those that the package draws itself.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from proxemic.cli import main as proxemic
from proxemic.data import Glyphs

DOCS = Path(__file__).parent
CLASSES = 40  # of the pictures that are searched
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "color_scheme": "dark"}


def main(run: Path) -> None:
    """Draw all pictures."""
    save("gallery", (run / "gallery.png").read_bytes(), width=900)
    run = run.absolute()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.chdir(folder)
        Path("runs").mkdir()
        Path("runs/first").symlink_to(run)  # pages show this path
        write_pictures(Path("photos"), Path("queries"))
        write_pictures(Path("mixed"), Path("queries"), every=37)
        for gallery, pictures in (("shop", "photos"), ("letters", "mixed")):
            run_command("gallery", "create", gallery, pictures, "--model", "runs/first")
        run_command("report", "runs/first", "--map", "tsne", "--out", "report.html")
        queries = [str(path) for path in sorted(Path("queries").iterdir())]
        run_command("search", "shop", *queries[2:15:5], "-k", "5", "--html", "found.html")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        draw_report(browser)
        draw_search(browser)
        draw_review(browser)


def draw_report(browser: Browser) -> None:
    """Draw the report: its beginning, the map, two pairs of pictures, and queries on a phone."""
    address = Path("report.html").absolute().as_uri()
    with opened(browser, address, 1000, 1150) as page:
        page.wait_for_selector("svg[role=img]")
        save("report", page.screenshot())
    with opened(browser, address, 900, 760) as page:
        page.locator("#map svg").wait_for()
        page.locator("#map").evaluate("section => section.scrollIntoView()")
        page.get_by_label("Search by class").fill("U+01")
        page.locator("#map .mark-symbol path[fill='#0a7cc4']").nth(20).hover(force=True)  # another point may lie above
        page.locator("#vg-tooltip-element.visible img").wait_for()
        save("report-map", page.screenshot())
    with opened(browser, address, 900, 740) as page:
        page.locator("#why-two-images-are-near").evaluate("section => section.scrollIntoView()")
        save("report-why", page.screenshot())
    with opened(browser, address, **PHONE) as page:
        page.locator("#queries").evaluate("section => section.scrollIntoView()")
        save("report-phone", page.screenshot())


def draw_search(browser: Browser) -> None:
    """Draw a contact sheet, and the page of a server with a query, on a desk and on a phone."""
    with opened(browser, Path("found.html").absolute().as_uri(), 1200, 700) as page:
        save("search", page.screenshot(full_page=True))
    query = sorted(Path("queries").iterdir())[2]
    with served("shop", "--threshold", "4.5") as address:
        for name, options in (("serving", {"width": 1100, "height": 900}), ("serving-phone", PHONE)):
            with opened(browser, address, **options) as page:
                page.get_by_label("Drop, paste or choose a photo").set_input_files(query)
                page.locator("#hits img").first.wait_for()
                page.wait_for_load_state("networkidle")
                if options is PHONE:
                    page.locator("#answer").evaluate("section => section.scrollIntoView()")
                save(name, page.screenshot())


def draw_review(browser: Browser) -> None:
    """Draw the review of wrong labels."""
    with served("letters", "--review") as address, opened(browser, f"{address}review", 1280, 760) as page:
        page.get_by_label("Your name").fill("Ann")
        page.locator("#neighbours img").first.wait_for()
        page.wait_for_load_state("networkidle")
        save("reviewing", page.screenshot())


def write_pictures(folder: Path, queries: Path, every: int | None = None) -> None:
    """Write unseen characters: one typeface to `queries`, the others to class folders, some to a wrong one."""
    images = Glyphs(test_classes=256).load().test_images
    pixels: Any = images.pixels
    for row in range(12 * CLASSES):
        name = images.class_names[images.labels[row] + (every is not None and row % every == 1)]
        path = queries / f"{name}.png" if row % 12 == 0 else folder / name / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels[row].resize((128, 128), Image.Resampling.LANCZOS).save(path)


def run_command(*words: str) -> None:
    """Run a command of proxemic, which must succeed."""
    if proxemic([*words]):
        raise SystemExit(f"proxemic {' '.join(words)} failed")


@contextmanager
def served(*words: str) -> Iterator[str]:
    """Run proxemic serve and yield its address."""
    command = [sys.executable, "-m", "proxemic", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = next(found for line in server.stderr if (found := re.search(r"at (http://\S+/) ", line)))
        yield found[1]
        server.terminate()


@contextmanager
def opened(browser: Browser, address: str, width: int = 0, height: int = 0, **options: object) -> Iterator[Page]:
    """Open an address in a window of its own."""
    context = browser.new_context(**{"viewport": {"width": width, "height": height}, **options})  # pyright: ignore
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def save(name: str, content: bytes, width: int | None = None) -> None:
    """Write a picture of docs with few colours, and so of few bytes."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    if width is not None:
        picture.thumbnail((width, 10 * width))
    picture.quantize(128).save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

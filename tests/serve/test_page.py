"""The page in a real browser: by mouse, keyboard, clipboard and phone."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect

from browser import PHONE, Opened, faults_of_access
from proxemic.retrieval import Gallery
from servings import Serving

PHOTO = "photos/class 03/2.png"

HAND_OVER = """([kind, name, type, content]) => {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type }));
    const event = kind === "paste"
        ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
        : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
    document.getElementById("drop").dispatchEvent(event);
}"""


NAME = "(element) => element.id || element.querySelector('img')?.alt || element.textContent.trim()"


def hand_over(page: Page, kind: str, content: bytes, name: str = "photo.png") -> None:
    page.evaluate(HAND_OVER, [kind, name, "image/png", base64.b64encode(content).decode()])


def labels(page: Page, of: str = "hits") -> list[str]:
    return page.locator(f"#{of} b").all_inner_texts()


def test_a_picture_is_chosen_dropped_or_pasted(browse: Opened, serving: Serving, stall: Path) -> None:
    content = (stall / PHOTO).read_bytes()
    with browse(serving.address) as page:
        expect(page.locator("#about")).to_have_text("28 photos, 7 labels, cosine distance.")
        expect(page.locator("#items li")).to_have_count(24)
        page.get_by_role("button", name="Show more").click()
        expect(page.locator("#items li")).to_have_count(28)
        expect(page.get_by_role("button", name="Show more")).to_be_hidden()
        page.get_by_label("Neighbours").fill("5")
        page.get_by_label("Drop, paste or choose a photo").set_input_files(stall / PHOTO)
        expect(page.locator("#status")).to_have_text("5 found")
        assert labels(page)[0] == "class 03"
        line = page.locator("#hits .line")
        expect(line).to_have_text("Threshold 0.0001: what follows is too far away to be named.")
        place = line.evaluate("line => [...line.parentNode.children].indexOf(line)")
        distances = [float(text) for text in page.locator("#hits figcaption > span").all_inner_texts()]
        assert place == sum(distance <= 0.0001 for distance in distances)
        assert page.locator("#query").bounding_box()["width"] >= 150  # pyright: ignore[reportOptionalSubscript]
        expect(page.locator("#verdict b")).to_have_text("class 03")
        assert page.evaluate("document.activeElement.id") == "answer-title"
        for number, kind in enumerate(("drop", "paste"), start=6):
            page.get_by_label("Neighbours").fill(str(number))
            hand_over(page, "dragover", content)
            hand_over(page, kind, content)
            expect(page.locator("#status")).to_have_text(f"{number} found")
        assert page.evaluate("document.getElementById('query').naturalWidth") == 16
        with page.expect_popup() as opened:
            page.locator("#hits a").first.click()
        opened.value.wait_for_url("**/picture*")


def test_a_picture_of_the_gallery_is_clicked_and_filters_hold(browse: Opened, serving: Serving) -> None:
    with browse(serving.address) as page:
        page.locator("#items button").nth(8).click()
        expect(page.locator("#status")).to_have_text("12 found")
        expect(page.locator("#verdict")).to_contain_text("class 02 of the gallery")
        page.get_by_label("Value").fill("class 05")
        page.get_by_label("Value").press("Enter")
        expect(page.locator("#status")).to_have_text("4 found")
        assert {*labels(page)} == {"class 05"}
        expect(page.locator("#items li")).to_have_count(4)
        expect(page.locator("#choose")).to_have_text("Choose a photo to see its neighbours.")
        page.get_by_role("button", name="label = class 05").click()
        expect(page.locator("#status")).to_have_text("12 found")
        expect(page.locator("#items li")).to_have_count(24)


def test_a_filter_that_nothing_meets_says_so(browse: Opened, serving: Serving) -> None:
    with browse(serving.address) as page:
        expect(page.locator("#items li")).to_have_count(24)
        page.get_by_label("Value").fill("none such")
        page.get_by_label("Value").press("Enter")
        expect(page.locator("#choose")).to_have_text("No photo meets the filters.")
        expect(page.locator("#items li")).to_have_count(0)


def test_a_picture_that_is_gone_is_searched_for_all_the_same(browse: Opened, serving: Serving) -> None:
    with browse(serving.address) as page:
        page.route("**/items/3/thumbnail", lambda route: route.fulfill(content_type="image/jpeg", body="gone"))
        page.reload()  # the picture may have been there before it was gone
        expect(page.locator("#items .none")).to_have_text("no photo")
        page.get_by_role("button", name="Search with class 00, which has no photo").click()
        expect(page.locator("#status")).to_have_text("12 found")
        expect(page.locator("#query")).to_be_hidden()
        page.locator("#hits button").first.click()
        expect(page.locator("#query")).to_be_visible()


def test_all_is_done_by_the_keyboard(browse: Opened, serving: Serving) -> None:
    with browse(serving.address) as page:
        expect(page.locator("#items li")).to_have_count(24)
        reached: list[Any] = []
        for _ in range(7):
            page.keyboard.press("Tab")
            reached.append(page.evaluate(f"({NAME})(document.activeElement)"))
        controls = ["file", "count", "column", "value", "Add filter"]
        assert reached == ["Skip to the content", *controls, "Search with class 00"]
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text("12 found")
        first = labels(page)[0]
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # the first of what was found
        expect(page.locator("#verdict b")).to_have_text(first)


def test_what_is_no_picture_is_told(browse: Opened, serving: Serving) -> None:
    with browse(serving.address) as page:
        page.locator("#items button").first.click()
        expect(page.locator("#answer")).to_be_visible()
        hand_over(page, "drop", bytes(400_001))
        said = "The photo has 400,001 bytes, but the limit is 400,000: choose a smaller one."
        expect(page.locator("#status.error")).to_have_text(said)
        expect(page.locator("#answer")).to_be_hidden()
        page.evaluate("document.dispatchEvent(new DragEvent('drop', {dataTransfer: new DataTransfer()}))")
        expect(page.locator("#status")).to_contain_text("That is not a file")


def test_everybody_can_use_it(browse: Opened, serving: Serving, stall: Path) -> None:
    for options in ({}, {**PHONE, "color_scheme": "dark"}):
        with browse(serving.address, **options) as page:
            page.get_by_label("Drop, paste or choose a photo").set_input_files(stall / PHOTO)
            expect(page.locator("#status")).to_have_text("12 found")
            assert faults_of_access(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_other_machines_need_the_token(browse: Opened, shelf: Path, tmp_path: Path) -> None:
    token = "a+token/of=24&characters"
    serving = Serving(tmp_path, shelf / "shop", "--host", "0.0.0.0", "--token", token, "--name", "search.example.org")
    try:
        client, bearer = serving.client, {"Authorization": f"Bearer {token}"}
        for headers, status in (
            ({}, 401),
            ({"Authorization": f"Bearer {token}x"}, 401),
            (bearer, 200),
            ({**bearer, "Host": "search.example.org"}, 200),
            ({**bearer, "Host": "evil.example"}, 421),
        ):
            assert client.get("/gallery", headers=headers).status_code == status, headers
            assert client.get("/items/1/picture", headers=headers).status_code == status, headers
        assert client.get("/?token=wrong").status_code == 401
        with browse(f"{serving.address}?token={token}", allowed=serving.address) as page:
            assert page.url == serving.address, "the token does not stay in the history"
            page.get_by_label("Drop, paste or choose a photo").set_input_files(shelf / PHOTO)
            expect(page.locator("#status")).to_have_text("12 found")
            assert page.locator("#hits img").first.evaluate("image => image.decode().then(() => true)")
        assert token not in serving.log.read_text()
    finally:
        assert serving.end() == 0


def test_names_of_others_stay_text(browse: Opened, serving: Serving, stall: Path) -> None:
    hostile = "<img src=x onerror=console.error(1)>'\"</script><script>console.error(2)</script>"
    gallery = Gallery.open(stall / "shop")
    vectors, items = gallery.store.rows(np.array([14]))
    path = stall / f"{hostile.replace('/', '')}.png"
    path.write_bytes(Path(items["path"][0].as_py()).read_bytes())
    gallery.store.add_roots([str(stall)])
    gallery.add_vectors(vectors, [str(path)], [hostile], {"colour": ["<b>red</b>"]})
    try:
        with browse(serving.address) as page:
            page.locator("#items button").nth(14).click()
            expect(page.locator("#status")).to_have_text("12 found")
            assert labels(page)[0] == hostile
            expect(page.locator("#hits li a").first).to_have_text(path.name)
            expect(page.locator("#hits li small").first).to_have_text("colour: <b>red</b>")
            page.locator("#column").select_option("colour")
            page.get_by_label("Value").fill("<b>red</b>")
            page.get_by_label("Value").press("Enter")
            expect(page.locator("#items li")).to_have_count(1)
            assert page.evaluate("document.scripts.length") == 1
    finally:
        gallery.remove({"label": hostile})

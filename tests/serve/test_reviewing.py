"""The review of labels in real browsers: by keyboard alone, by two people at once, and through kill -9."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

from browser import PHONE, Opened, faults_of_access
from command_line import Here, assert_refused, csv_rows
from proxemic.data.sources.listing import list_images
from proxemic.retrieval import Gallery
from proxemic.retrieval.curation import Doubt, decisions, list_decisions
from proxemic.retrieval.galleries.stores import Store
from proxemic.serve import reviewing
from proxemic.serve.access import Access
from proxemic.serve.app import make_app
from proxemic.serve.engine import Engine
from proxemic.serve.limits import Limits
from reviewed import labels_of, write_glyphs
from servings import Serving

ANN, BOB = ({"session": f"the session of {name}", "reviewer": name} for name in ("Ann", "Bob"))


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A gallery with 12 wrong labels, and the true ones."""
    folder = tmp_path_factory.mktemp("glyphs")
    return folder, write_glyphs(folder, wrong=12)


@pytest.fixture
def shop(glyphs: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    return shutil.copytree(glyphs[0] / "shop", tmp_path / "shop")


SHOWN = """() => document.getElementById("doubt").hidden ? null : [
    document.getElementById("name").textContent,
    document.querySelector("#title b").textContent,
    document.getElementById("take").checkVisibility() ? document.querySelector("#take span").textContent : "",
]"""


class Reviewer:
    """Someone who knows the letters and corrects what is shown by the keyboard, in all the ways that there are."""

    def __init__(self, page: Page, truth: dict[str, str], removes: str) -> None:
        self.page, self.truth, self.removes = page, truth, removes
        self.done = set[str]()
        expect(page.locator("#keep")).to_be_visible()

    @property
    def shown(self) -> list[str] | None:
        """The name and the label of the picture, and what is suggested; None at the end."""
        return self.page.evaluate(SHOWN)

    def press(self, key: str) -> None:
        """Press a key and wait for the next picture, or for the end."""
        before = self.page.evaluate_handle("document.getElementById('name').firstChild")
        self.page.keyboard.press(key)
        gone = "(before) => !before.isConnected || document.getElementById('doubt').hidden"
        self.page.wait_for_function(gone, arg=before)

    def step(self) -> bool:
        """Decide about one picture, or do once what one may do before; False at the end."""
        page, shown = self.page, self.shown
        if shown is None:
            return False
        name, label, suggested = shown
        assert "null" not in suggested
        true = self.truth[name]
        if name == self.removes:
            self.press("r")
        elif label == true:
            self.press("k")
        elif "later" not in self.done:
            self.press("l")
            assert self.shown != shown
            self.done.add("later")
        elif "undone" not in self.done:
            self.press("k")
            self.press("u")
            expect(page.locator("#status")).to_have_text("The last decision is undone.")
            assert self.shown == shown
            self.done.add("undone")
        elif suggested == f"Take {true}" and "typed" in self.done:
            self.press("t")
            self.done.add("took")
        else:
            page.keyboard.press("a")
            page.keyboard.type("never seen")
            page.keyboard.press("Enter")
            expect(page.locator("#status")).to_contain_text("No photo has the label never seen yet")
            page.keyboard.press("Control+a")
            page.keyboard.type(true)
            assert true in page.locator("#labels option").evaluate_all("(all) => all.map((each) => each.value)")
            self.press("Enter")
            self.done.add("typed")
        return True


def test_wrong_labels_are_corrected_by_two_people(
    browse: Opened, glyphs: tuple[Path, dict[str, str]], shop: Path, tmp_path: Path, here: Here
) -> None:
    truth, before = glyphs[1], labels_of(shop)
    wrong = {path for path, label in before.items() if label != truth[path]}
    assert len(wrong) == 12
    removed = min(wrong)
    names = {Path(path).name: label for path, label in truth.items()}
    serving = Serving(tmp_path, shop, "--review", forked=True)
    try:
        address, mine = f"{serving.address}review", {"allowed": serving.address}
        with browse(address, **mine) as one, browse(address, **mine, **PHONE, color_scheme="dark") as other:
            reviewers = [Reviewer(page, names, Path(removed).name) for page in (one, other)]
            assert reviewers[0].shown != reviewers[1].shown, "nobody is shown what another looks at"
            for page in (one, other):
                assert faults_of_access(page) == []
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            one.reload()
            expect(one.locator("#keep")).to_be_visible()
            while sum(reviewer.step() for reviewer in reviewers):  # each takes its turn
                pass
            assert all(reviewer.done == {"later", "undone", "typed", "took"} for reviewer in reviewers)
            for page in (one, other):  # who was ready first was told that the other is not
                if page.locator("#again").is_visible():
                    page.keyboard.press("Enter")
                expect(page.locator("#status")).to_contain_text("All photos are decided")
    finally:
        assert serving.end() == 0
    made = {decision.path: decision for decision in list_decisions(shop)}
    assert made.keys() >= wrong
    assert labels_of(shop) == before, "nothing changes before they are applied"

    table, photos = tmp_path / "decisions.csv", tmp_path / "photos.csv"
    assert here("gallery", "decisions", shop, "--out", table, "--relabel", photos).returncode == 0
    assert {row["path"]: row["label"] for row in csv_rows(table) if row["action"] == "relabel"} == {
        path: truth[path] for path in wrong - {removed}
    }
    after = {path: label for path, label in truth.items() if path != removed}
    corrected = list_images(photos)
    assert dict(zip(corrected.names, corrected.labels, strict=True)) == after
    said = here("gallery", "apply", shop).stdout
    assert said == f"11 relabelled, 1 removed, {len(made) - 12} kept: {len(after)} photos in {shop}\n"
    assert labels_of(shop) == after
    assert Path(removed).exists()
    assert here("gallery", "apply", shop).stdout.startswith("0 relabelled, 0 removed, 0 kept")
    assert "applied" in here("gallery", "decisions", shop).stdout


def test_keys_count_again_when_a_name_was_confirmed(browse: Opened, shop: Path, tmp_path: Path) -> None:
    serving = Serving(tmp_path, shop, "--review", forked=True)
    try:
        with browse(f"{serving.address}review", allowed=serving.address) as page:
            reviewer = Reviewer(page, {}, "")
            page.click("#reviewer")
            page.keyboard.type("Ann")
            page.keyboard.press("Enter")
            reviewer.press("k")
            page.keyboard.press("a")
            page.keyboard.type("never seen")
            page.keyboard.press("Enter")
            expect(page.locator("#status")).to_contain_text("No photo has the label never seen yet")
            page.route("**/review/*", lambda _: None)  # there is no answer before `unroute`
            page.keyboard.press("Enter")
            page.wait_for_function("document.activeElement.id === 'title'")
            page.keyboard.press("k")  # decides nothing about a picture that is not shown yet, and types nothing
            page.unroute("**/review/*")
            expect(page.locator("#status")).to_contain_text("gets the label never seen.")
            expect(page.locator("#label")).to_have_value("")
            reviewer.press("k")
    finally:
        assert serving.end() == 0
    made = list_decisions(shop)
    assert [(item.reviewer, item.action, item.label == "never seen") for item in made] == [
        ("Ann", "keep", False),
        ("Ann", "relabel", True),
        ("Ann", "keep", False),
    ]


def test_answered_decisions_outlive_a_server_that_is_killed(shop: Path, tmp_path: Path) -> None:
    serving = Serving(tmp_path, shop, "--review", forked=True)
    answered = []
    for _ in range(5):
        found = serving.client.post("/review/next", params=ANN).json()["doubt"]
        choice = {"action": "relabel", "label": found["suggested"], **ANN}
        answered.append(serving.client.post(f"/review/{found['number']}", params=choice).json()["decision"])
    assert serving.end(signal.SIGKILL) == -signal.SIGKILL
    made = list_decisions(shop)
    assert [item.number for item in made] == answered
    assert {(item.reviewer, item.state) for item in made} == {("Ann", "open")}


@pytest.fixture
def app(shop: Path) -> Iterator[TestClient]:
    """A review of three pictures, of which one repeats another; without a server."""
    paths = sorted(labels_of(shop))
    labels = labels_of(shop)
    doubts = [Doubt(path, labels[path], "Q", ("It may be another letter.",)) for path in paths[:2]]
    doubts.append(Doubt(paths[2], labels[paths[2]], None, ("It looks nearly like another photo.",), paths[3]))
    guard = make_app(Engine(str(shop)), Access("localhost", None), Limits(), doubts)
    with TestClient(guard, "http://localhost") as client:
        yield client


def test_a_decision_that_is_undone_while_another_is_made(
    app: TestClient, monkeypatch: pytest.MonkeyPatch, shop: Path
) -> None:
    first = app.post("/review/0", params={"action": "keep", **ANN}).json()["decision"]

    def decide(store: Store, *choice: Any) -> int | None:
        made = decisions.decide(store, *choice)
        if made is None:
            decisions.withdraw(Gallery.open(shop).store, first, ANN["session"])  # as another process does
        return made

    monkeypatch.setattr(reviewing, "decide", decide)
    answer = app.post("/review/0", params={"action": "remove", **BOB}).json()
    assert answer == {"decision": first, "note": None}
    assert [(item.reviewer, item.action) for item in list_decisions(shop)] == [("Bob", "remove")]


def ask_next(app: TestClient, who: dict[str, str], **further: int) -> int | None:
    found = app.post("/review/next", params={**who, **further}).json()["doubt"]
    return found and found["number"]


def test_nobody_is_shown_what_another_looks_at(app: TestClient, shop: Path) -> None:
    assert [ask_next(app, ANN), ask_next(app, BOB), ask_next(app, ANN), ask_next(app, BOB)] == [0, 1, 2, 1]
    assert ask_next(app, ANN) == 0, "what was left comes again"
    first = app.post("/review/1", params={"action": "keep", **ANN}).json()
    late = app.post("/review/1", params={"action": "remove", **BOB}).json()
    assert late == {"decision": None, "note": "Ann has already decided: keep its label."}
    assert app.delete(f"/review/{first['decision']}", params=ANN).json() == {**first, "note": None}
    assert app.delete(f"/review/{first['decision']}", params=ANN).json()["decision"] is None
    assert app.delete(f"/review/{2**63}", params=ANN).status_code == 422, "no database holds such a number"
    assert list_decisions(shop) == ()
    assert ask_next(app, ANN, number=1) == 1
    found = app.post("/review/next", params={**ANN, "number": 2}).json()["doubt"]
    assert found["repeats"]["name"] == Path(sorted(labels_of(shop))[3]).name
    assert {hit["label"] for hit in found["own"]} == {found["row"]["label"]}
    assert found["row"]["id"] not in {hit["id"] for hit in found["own"]}


def test_what_changes_meanwhile_is_not_asked(app: TestClient, shop: Path) -> None:
    paths, gallery = sorted(labels_of(shop)), Gallery.open(shop)
    gallery.remove({"path": paths[0]})
    assert ask_next(app, ANN) == 1
    answer = app.post("/review/next", params=BOB).json()
    assert (answer["doubt"]["number"], answer["left"]) == (2, 2)
    for number in (1, 2):
        assert app.post(f"/review/{number}", params={"action": "keep", **ANN}).json()["note"] is None
    assert app.post("/review/next", params=BOB).json() == {"doubt": None, "left": 0}


@pytest.mark.parametrize(
    ("path", "choice", "said"),
    [
        ("0", {"action": "relabel"}, "label is missing"),
        ("0", {"action": "relabel", "label": " "}, "label is missing"),
        ("0", {"action": "relabel", "label": "a\x00b"}, "cannot be shown"),
        ("0", {"action": "keep", "reviewer": "\x1b[31m"}, "cannot be shown"),
        ("0", {"action": "erase"}, "action is 'erase'"),
        ("3", {"action": "keep"}, "no suspected photo 3"),
    ],
)
def test_what_cannot_be_decided_is_refused(
    app: TestClient, shop: Path, path: str, choice: dict[str, str], said: str
) -> None:
    answer = app.post(f"/review/{path}", params={**ANN, **choice})
    assert answer.status_code in (404, 422)
    assert said in answer.json()["detail"]
    other = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert app.post("/review/0", params={"action": "keep", **ANN}, headers=other).status_code == 403
    assert list_decisions(shop) == ()


def test_galleries_that_cannot_be_reviewed_are_refused(tmp_path: Path, here: Here) -> None:
    pytest.importorskip("milvus_lite", reason="Milvus Lite has no Windows")
    Gallery.create(f"milvus-lite:{tmp_path / 'milvus'}", dim=2).close()
    assert_refused(here("serve", f"milvus-lite:{tmp_path / 'milvus'}", "--review"), ["in a folder or in PostgreSQL"])

"""Contact sheets: each query next to its hits, as a web page or as an image."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont, ImageOps
from PIL.PngImagePlugin import PngInfo

from proxemic.data.reading import cut_thin
from proxemic.data.remote import is_address
from proxemic.data.roots import is_below, path_and_box, picture_named
from proxemic.errors import UserError
from proxemic.files import printable, readable, write_atomically, write_text
from proxemic.outputs import MADE_BY, check_output, is_page, is_picture
from proxemic.pages import environment, picture
from proxemic.pages.page import short
from proxemic.retrieval.galleries.hits import Hit
from proxemic.retrieval.searching.search import Answer, SearchResult
from proxemic.tables import counted

if TYPE_CHECKING:
    from markupsafe import Markup

_SIDE, _GAP, _LINE = 160, 12, 16  # pixels
_MOST_SHOWN = 500  # most images of a web page, about 5 MB
_MOST_DRAWN = 300  # most images of a drawn sheet
_SAME, _OTHER, _INK, _MUTED = "#1a7f37", "#cf222e", "#1f2328", "#59636e"


def write_contact_sheet(result: SearchResult, path: str | Path) -> None:
    """Write a contact sheet: the first queries, each next to its hits with their labels and distances.

    Without a readable image below the gallery's roots, only the name is shown. If a query has a label, hits with the
    same label are marked.

    Args:
        result: The result of a search.
        path: An ``.html`` page, which contains its images and works offline, or a ``.png`` image.

    Raises:
        UserError: If the name has another ending, or the file cannot be written, or exists and is not a contact sheet.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".png"):
        raise UserError(f"The contact sheet is {path}, but must end in .html or .png.")
    page = path.suffix.lower() == ".html"
    check_sheet(path)
    shown = _first(result, _MOST_SHOWN if page else _MOST_DRAWN)
    note = "" if len(shown) == len(result.answers) else f"the first {len(shown):,} of {len(result.answers):,} queries"
    if page:
        write_text(path, _page(result, shown, note))
        return
    with write_atomically(path) as temporary:
        made_by = PngInfo()
        made_by.add_text("Software", MADE_BY)
        _draw(result, shown, note).save(temporary, format="PNG", pnginfo=made_by)


def check_sheet(path: Path | None, queries: Sequence[object] = ()) -> None:
    """Raise `UserError` if a contact sheet would overwrite a query, or a file that is not a contact sheet."""
    if path is not None:
        check_output(path, is_page if path.suffix.lower() == ".html" else is_picture, queries)


def _first(result: SearchResult, most: int) -> list[Answer]:
    """Take as many queries as `most` images allow, but at least one."""
    shown, pictures = [], 0
    for answer in result.answers:
        pictures += 1 + len(answer.hits)
        if shown and pictures > most:
            break
        shown.append(answer)
    return shown


def _page(result: SearchResult, answers: list[Answer], note: str) -> str:
    gallery = result.gallery
    made = environment(Path(__file__).parent)
    context = {"title": gallery, "scripts": [], "gallery": gallery, "answers": answers, "note": note, "side": _SIDE}

    def show(name: str, alt: str) -> "Markup":
        return picture(_thumbnail(name, result.roots), _SIDE, alt)

    def link(name: str) -> str:
        """Return the URL of the original if it may be opened, otherwise an empty text."""
        path = path_and_box(name)[0]
        return "" if not is_below(path, result.roots) else path if is_address(path) else Path(path).absolute().as_uri()

    rate = first_right(result.answers)
    text = made.get_template("contact_sheet.html").render(context, show=show, link=link, rate=rate)
    return readable(text)


def first_right(answers: Sequence[Answer]) -> str:
    """Say for how many labelled queries the first hit has the same label; return an empty text without such queries.

    >>> hit = Hit(0, "a.jpg", "hat", 0.1, {})
    >>> first_right([Answer("b.jpg", "hat", [hit]), Answer("c.jpg", "shoe", [hit]), Answer("d.jpg", None, [hit])])
    'The first hit has the same label for 1 of 2 queries (50.0 %).'
    """
    labelled = [answer for answer in answers if answer.label is not None]
    right = sum(bool(answer.hits) and answer.hits[0].label == answer.label for answer in labelled)
    if not labelled:
        return ""
    queries = counted(len(labelled), "query", "queries")
    return f"The first hit has the same label for {right:,} of {queries} ({100 * right / len(labelled):.1f} %)."


def _draw(result: SearchResult, answers: list[Answer], note: str) -> Image.Image:
    import matplotlib

    columns = 1 + max((len(answer.hits) for answer in answers), default=0)
    step, tall = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP
    head = _LINE + 2 * _GAP
    sheet = Image.new("RGB", (step * columns + 2 * _GAP, head + tall * len(answers)), "white")
    # Labels may be in any script.
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), 11)
    draw = ImageDraw.Draw(sheet)

    def text(place: tuple[int, int], words: str, colour: str, room: int = _SIDE) -> None:
        words = printable(words)
        while words and draw.textlength(words, font) > room:
            words = words[:-2] + "…" if len(words) > 2 else ""
        draw.text(place, words, colour, font)

    text((_GAP, _GAP), f"Nearest photos in {result.gallery}" + f", {note}" * bool(note), _INK, sheet.width - 2 * _GAP)
    for row, answer in enumerate(answers):
        top = head + tall * row
        for column, shown in enumerate((answer, *answer.hits)):
            left = _GAP + step * column + (_GAP if column else 0)
            name, colour = (shown.path, _INK) if isinstance(shown, Hit) else (shown.query, _MUTED)
            if isinstance(shown, Hit) and answer.label is not None:
                colour = _SAME if shown.label == answer.label else _OTHER
            picture = _thumbnail(name, result.roots)
            if picture is None:
                draw.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), outline=_MUTED)
                text((left + 8, top + _SIDE // 2), short(name), _MUTED, _SIDE - 16)
            else:
                at = left + (_SIDE - picture.width) // 2, top + (_SIDE - picture.height) // 2
                sheet.paste(picture, at)
            distance = f"  {shown.distance:.3f}" if isinstance(shown, Hit) else ""
            text((left, top + _SIDE + 3), (shown.label or ("query" if column == 0 else "")) + distance, colour)
            text((left, top + _SIDE + 3 + _LINE), short(name), _MUTED)
    return sheet


def _thumbnail(name: str, roots: Sequence[str]) -> Image.Image | None:
    """Read an image in the size of the sheet; return None if it is unreadable or not below the roots."""
    picture = picture_named(name, _SIDE, roots)
    return None if picture is None else ImageOps.contain(cut_thin(picture).convert("RGB"), (_SIDE, _SIDE))

"""Hooks of mkdocs: generated pages, links out of docs/, formulas, examples and the search."""

import os
import posixpath
import re
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from formulas import as_mathml
from generated import commands_page, recipe_keys_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from public_names import Package, public_names

ROOT = Path(__file__).parents[2]
# Files beside docs/ that have a page of their own in the navigation.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# Words by which a page is looked for, and which it spells otherwise.
SPELLINGS = {"fine-tuning.md": "finetune finetuning", "losses/regularizers-and-pooling.md": "initialization"}
_PLOTTED = ("analysis.md", "characteristics.md", "experiments/", "losses/", "results/")
_PLOT = re.compile(r"<img (?=[^>]*\.png)")
_NO_HEADER = re.compile(r"<th[^>]*></th>")
_LINK = re.compile(r"(?<=\]\()([\w./-]+)")
_FORMULA = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^```(?:python)?\n(?=>>> )", re.MULTILINE)
_COMMANDS = re.compile(r"^```\n(?=(?:# .*\n)?(?:git|make|pip|proxemic|torchrun|uv) )", re.MULTILINE)
# A name as code, unless it is within a link, a heading or a block of code.
_NAME = re.compile(r"<(a|h\d|pre|autoref)\b.*?</\1>|<code>([\w.]+)</code>", re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Add generated pages to the navigation."""
    assert config.nav is not None
    # In reading order.
    tutorials = runpy.run_path(str(ROOT / "docs" / "make_notebooks.py"))["TUTORIALS"]
    sections = {
        "reference": [
            {"Commands": "reference/commands.md"},
            {"Recipe keys": "reference/recipe-keys.md"},
            {"Python": [{name.removeprefix("proxemic."): _place(name)} for name in public_names()]},
        ],
        "tutorials": ["tutorials/README.md", *(f"tutorials/{path.stem}.md" for path in tutorials)],
    }

    def fill(entries: list[Any]) -> None:
        for entry in entries:
            if isinstance(entry, dict):
                for title, content in entry.items():
                    if isinstance(content, list):
                        fill(content)
                    else:
                        entry[title] = sections.get(content, content)

    fill(config.nav)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add pages for files outside of docs/, linked files, tutorials and the reference."""

    def add(place: str, content: str | bytes) -> None:
        files.append(File.generated(config, place, content=content))

    for source, page in PAGES.items():
        add(page, (ROOT / source).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        # A process of its own, as tutorials change torch's generator and the like.
        unrun = ["--without-results"] if os.environ.get("TUTORIALS") == "unrun" else []
        subprocess.run([sys.executable, ROOT / "docs" / "make_notebooks.py", folder, *unrun], check=True)
        for path in sorted(Path(folder).iterdir()):
            add(
                f"tutorials/{path.name}",
                path.read_text(encoding="utf-8") if path.suffix == ".md" else path.read_bytes(),
            )
    linked = set[str]()
    for page in files.documentation_pages():
        for link in _LINK.findall(page.content_string):
            target = _outside(page.src_uri, link)
            if target and _inside(target) == f"files/{target}.md":
                linked.add(target)
    for target in sorted(linked):
        add(f"files/{target}.md", _as_page(target))
    for name, package in public_names().items():
        add(_place(name), _reference(name, package))
    add("reference/commands.md", commands_page())
    add("reference/recipe-keys.md", recipe_keys_page())


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Redirect links out of docs/ to their pages, convert formulas to MathML, and mark examples and commands."""

    def relink(link: re.Match[str]) -> str:
        if (target := _outside(page.file.src_uri, link[0])) is None:
            return link[0]
        return posixpath.relpath(_inside(target), posixpath.dirname(page.file.src_uri))

    if not page.file.src_uri.startswith(("files/", "reference/")):
        markdown = _FORMULA.sub(lambda found: as_mathml(found[1]), _LINK.sub(relink, markdown))
        markdown = _COMMANDS.sub("```bash\n", _EXAMPLE.sub("```pycon\n", markdown))
    described = _by_spelling().get(Path(page.file.src_uri).stem)
    return f"{markdown}\n\nIn the reference: [`{described}`][{described}]" if described else markdown


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Link public names to the reference, mark plots that dark pages invert, and add spellings for the search."""
    known = _by_spelling()

    def link(found: re.Match[str]) -> str:
        if (name := known.get(found[2])) is None:
            return found[0]
        return f'<autoref identifier="{name}" optional><code>{found[2]}</code></autoref>'

    if page.file.src_uri.startswith(_PLOTTED):
        html = _PLOT.sub('<img class="plot" ', html)
    spelled = f"<p hidden>{words}</p>" if (words := SPELLINGS.get(page.file.src_uri)) else ""
    return _NAME.sub(link, _NO_HEADER.sub("<td></td>", html)) + spelled


def on_post_page(output: str, **_: Any) -> str:
    """Name the search dialog of the theme for screen readers."""
    unnamed = 'data-md-component="search" role="dialog"'
    return output.replace(unnamed, f'{unnamed} aria-label="Search"')


def _outside(page: str, link: str) -> str | None:
    """Return the file of the repository that a link of a page leads to, if the site has it elsewhere."""
    sources = {page: source for source, page in PAGES.items()}
    source = sources.get(page, f"docs/{page}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    moved = source in PAGES or target.endswith(".py") or not target.startswith("docs/")
    return target if moved and not target.startswith("../") and (ROOT / target).is_file() else None


def _inside(target: str) -> str:
    """Return the place of a file of the repository on the site."""
    if target in PAGES:
        return PAGES[target]
    if re.fullmatch(r"docs/tutorials/\w+\.py", target):
        return target.removeprefix("docs/").replace(".py", ".md")
    return target.removeprefix("docs/") if target.startswith("docs/") and target[-3:] != ".py" else f"files/{target}.md"


def _as_page(target: str) -> str:
    language = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}.get(Path(target).suffix, "text")
    text = (ROOT / target).read_text(encoding="utf-8")
    return f"---\nsearch: {{exclude: true}}\n---\n\n# {target}\n\n`````{language}\n{text}\n`````\n"


def _place(package: str) -> str:
    return "reference/index.md" if package == "proxemic" else f"reference/{package}.md"


def _reference(name: str, package: Package) -> str:
    lines = [
        f"# {name} {{#{name}}}",
        "",
        f"::: {name}",
        "    options: {show_root_heading: false, show_root_toc_entry: false, members: false}",
        "",
    ]
    elsewhere = package.elsewhere.items()
    for title, packages in (("Packages", True), ("Described elsewhere", False)):
        found = [(public, place) for public, place in elsewhere if (place == f"{name}.{public}") == packages]
        lines += [f"## {title}", ""] if found else []
        for public, place in found:
            anchor = "" if packages else f' id="{name}.{public}"'  # the page of a package has its name for its id
            lines += [f"- <span{anchor}>[`{public}`][{place}]</span>"]
        lines += [""]
    for public, full in package.described.items():
        lines += ["", f"::: {full}"]
        if full != f"{name}.{public}":
            lines[-1:] = [f'<span id="{name}.{public}"></span>', "", f"::: {full}"]
            lines += [f"    options: {{heading: {name}.{public}, toc_label: {public}}}"]
    return "\n".join(lines) + "\n"


def _by_spelling() -> dict[str, str]:
    """Map spellings in text to full names; a bare word must be unambiguous and not an ordinary word."""
    described = [(name, *item) for name, package in public_names().items() for item in package.described.items()]
    count = Counter(public for _, public, _ in described)
    known = {f"{name}.{public}": full for name, public, full in described}
    return known | {
        public: full for _, public, full in described if count[public] == 1 and ("_" in public or not public.islower())
    }

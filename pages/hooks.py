"""What mkdocs asks for while it builds the site of docs/.

The index page is the navigation. What a page links to outside of docs/, a test or an example, becomes a page of the
site, so that no link leads out of it: it can be read without a network, and says what this very checkout says.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = "docs"
SOURCE = "source"
"""Below it are the pages of what is outside of docs/."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_LANGUAGES = {
    ".py": "python",
    ".lua": "lua",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".sh": "sh",
}
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation is what docs/README.md lists: its sections, and their pages."""
    config.nav = navigation((Path(config.docs_dir) / "README.md").read_text("utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Each file outside that is linked to gets a page, and so does what it links to itself, if it is prose."""
    pages = [each for each in files.documentation_pages() if not each.generated_by]
    waiting = [path for page in pages for path in linked(f"{DOCS}/{page.src_uri}", page.content_string)]
    made = set[str]()
    while waiting:
        path = waiting.pop()
        if path in made:
            continue
        made.add(path)
        text = source_page(path)
        if path.endswith(".md") or (ROOT / path).is_dir():
            waiting += linked(path, text)
        files.append(File.generated(config, place(path), content=moved(path, text)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links that lead out of docs/ lead to the pages made for them."""
    return markdown if page.file.generated_by else moved(f"{DOCS}/{page.file.src_uri}", markdown)


def navigation(index: str) -> list[dict[str, Any]]:
    """By section, the pages in the first column of its table; the index itself is the first."""
    nav: list[dict[str, Any]] = [{"Documentation": "README.md"}]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        pages = [
            page for page in re.findall(r"^\| \[.+?\]\((.+?)\)", text, re.MULTILINE) if is_inside(f"{DOCS}/{page}")
        ]
        if pages:
            nav.append({title: pages})
    return nav


def is_inside(path: str) -> bool:
    """Whether a path from the root is one of docs/, which mkdocs knows."""
    return posixpath.normpath(path).split("/")[0] == DOCS


def linked(path: str, text: str) -> Iterator[str]:
    """The files outside of docs/, from the root, that the page at `path` links to and that are there."""
    for target in _LINK.findall(text):
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not is_inside(other) and (ROOT / other).exists():
            yield other


def place(path: str) -> str:
    """Where in the site's sources the page of a file is."""
    if is_inside(path):
        return posixpath.relpath(path, DOCS)
    return f"{SOURCE}/{path}" if path.endswith(".md") else f"{SOURCE}/{path}.md"


def moved(path: str, text: str) -> str:
    """The text of the page of `path` with the links as they are from its place in the site."""

    def link(match: re.Match[str]) -> str:
        other = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        if (is_inside(path) and is_inside(other)) or not (ROOT / other).exists():
            return match[1]
        return posixpath.relpath(place(other), posixpath.dirname(place(path)))

    return _LINK.sub(link, text)


def source_page(path: str) -> str:
    """A file as a page: prose as it is, code as code, a directory as the list of what is in it."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if is_shown(each))
        return f"{_UNSEARCHED}# {path}/\n\n" + "".join(
            f"- [{name}]({posixpath.basename(path)}/{name})\n" for name in names
        )
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        return _UNSEARCHED + text
    return f"{_UNSEARCHED}# {path}\n\n~~~~~~{_LANGUAGES.get(file.suffix, 'text')}\n{text}~~~~~~\n"


def is_shown(file: Path) -> bool:
    """Whether a file of a listed directory is one that people read."""
    return file.name[0] not in "._" and (file.is_dir() or file.suffix in {*_LANGUAGES, ".md"})

"""What the site of docs/ is made of: `make docs` builds it, and a link that leads nowhere is an error there."""

from __future__ import annotations

import re

import memable
from pages import state_machine
from pages.docstrings import fenced
from pages.hooks import linked, moved, navigation, place, source_page
from tests.markdown import DOCS, ROOT


def test_the_navigation_is_what_the_index_lists() -> None:
    nav = navigation((ROOT / "docs" / "README.md").read_text("utf-8"))
    listed = [page for section in nav[1:] for pages in section.values() for page in pages]
    assert sorted(["README.md", *listed]) == sorted(page.name for page in DOCS)
    # the examples are outside of docs/: they are pages, and no part of the navigation
    assert "Examples" not in {title for section in nav for title in section}


def test_a_link_out_of_docs_leads_to_the_page_of_that_file() -> None:
    text = "[a](../examples/saga.py), [b](steps.md#retries), [c](https://host/x.md), [d](#here), [e](../nothing.py)"
    assert list(linked("docs/map.md", text)) == ["examples/saga.py"]
    assert moved("docs/map.md", text) == text.replace("../examples/saga.py", "source/examples/saga.py.md")


def test_a_link_into_docs_from_outside_leads_into_the_site() -> None:
    assert place("docs/steps.md") == "steps.md"
    assert moved("README.md", "[a](docs/steps.md) [b](memable/keys.py)") == "[a](../steps.md) [b](memable/keys.py.md)"


def test_a_file_that_is_linked_to_is_shown_as_it_is() -> None:
    assert (ROOT / "examples" / "saga.py").read_text("utf-8") in source_page("examples/saga.py")
    assert "- [saga.py](examples/saga.py)\n" in source_page("examples")


def test_the_reference_has_every_public_name_once() -> None:
    named = re.findall(r"^::: memable\.(.+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)
    from memable import testing

    assert sorted(named) == sorted([*memable.__all__, *(f"testing.{name}" for name in testing.__all__)])


def test_examples_in_docstrings_are_code_and_not_quotations() -> None:
    assert fenced("Says.\n\n>>> 1 + 1\n2\n>>> 3\n3\n\nMore.") == (
        "Says.\n\n```pycon\n>>> 1 + 1\n2\n>>> 3\n3\n```\n\nMore."
    )
    assert fenced("no example: a > b >>> c") == "no example: a > b >>> c"


def test_the_picture_of_the_state_machine_is_that_of_the_scripts() -> None:
    drawn = state_machine.PICTURE.read_text("utf-8")
    assert drawn == state_machine.picture(), "it is out of date: run `python -m pages.state_machine`"
    assert state_machine.arrows().keys() == state_machine.ARROWS.keys()

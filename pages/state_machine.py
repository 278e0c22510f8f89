"""docs/state-machine.svg: the statuses, and the scripts that move an instance. `python -m pages.state_machine`.

What is drawn comes from the headers of the scripts, where it stands from here: a move that has no place is an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from memable import lua

PICTURE = Path(__file__).parent.parent / "docs" / "state-machine.svg"

ALIVE = frozenset({"queued", "running", "suspended"})
ENDED = frozenset({"completed", "failed", "cancelled"})
GROUPS: Mapping[frozenset[str], str] = {ALIVE: "alive", ENDED: "ended"}

BOXES: Mapping[str, tuple[int, int]] = {
    "queued": (250, 110),
    "running": (540, 110),
    "suspended": (395, 310),
    "completed": (850, 60),
    "failed": (850, 185),
    "cancelled": (850, 310),
}
WIDTH, HEIGHT = 120, 44


@dataclass(frozen=True)
class Arrow:
    """Where it goes, and where its names stand: the first of them above all others, or the last below all others."""

    path: str
    x: int
    y: int
    anchor: str = "middle"
    down: bool = False


ARROWS: Mapping[tuple[str, str], Arrow] = {
    ("new", "queued"): Arrow("M 60 110 H 184", 122, 100),
    ("queued", "running"): Arrow("M 310 102 H 474", 395, 92),
    ("running", "queued"): Arrow("M 480 120 H 316", 395, 140, down=True),
    ("running", "suspended"): Arrow("M 540 132 L 456 286", 512, 222, "start"),
    ("suspended", "queued"): Arrow("M 350 288 L 258 138", 276, 222, "end", down=True),
    ("running", "completed"): Arrow("M 600 100 L 784 64", 700, 72),
    ("running", "failed"): Arrow("M 600 118 L 784 178", 660, 164, down=True),
    ("alive", "failed"): Arrow("M 630 200 H 784", 706, 216),
    ("alive", "cancelled"): Arrow("M 630 310 H 784", 706, 300),
    ("ended", "queued"): Arrow("M 850 365 V 400 H 100 V 124 H 184", 475, 392),
    ("ended", "gone"): Arrow("M 920 185 H 990", 955, 175),
}
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #345; }
  .status { font-weight: 600; fill: #fff; text-anchor: middle; }
  .script { font-family: ui-monospace, monospace; }
  rect.status { fill: #00796b; } rect.ended { fill: #546e7a; }
  rect.group { fill: none; stroke: #90a4ae; stroke-dasharray: 5 4; }
  path { fill: none; stroke: #607d8b; stroke-width: 1.6; }
  rect.page { fill: #fff; }
"""
LINE_PX = 16


def arrows() -> Mapping[tuple[str, str], list[str]]:
    """The scripts of each arrow; one that moves from all of a group does so by one arrow."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for name in lua.names():
        sources = defaultdict[str, set[str]](set)
        for source, target in lua.load(name).moves:
            sources[target].add(source)
        for target, each in sorted(sources.items()):
            for source in _grouped(each):
                found[source, target].append(name)
    return found


def _grouped(sources: set[str]) -> Iterator[str]:
    rest = set(sources)
    for group, name in GROUPS.items():
        if group <= rest:
            rest -= group
            yield name
    yield from sorted(rest)


def _with_children(names: list[str]) -> list[str]:
    """Scripts that end an instance do not queue it: they queue its parent, if it has one."""
    ends = [name for name in names if ENDED & {target for _, target in lua.load(name).moves}]
    return [*(name for name in names if name not in ends), *(["a child\u2019s end"] if ends else [])]


def picture() -> str:
    """The SVG as it must be."""
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1010 420" role="img">',
        "<title>The statuses of an instance, and the scripts that move it</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">',
        '<path d="M 0 0 L 10 5 L 0 10 z" style="fill:#607d8b;stroke:none"/></marker></defs>',
        '<rect class="page" width="1010" height="420" rx="8"/>',
        '<rect class="group" x="170" y="20" width="460" height="345" rx="12"/>',
        '<rect class="group" x="780" y="20" width="140" height="345" rx="12"/>',
        '<text x="184" y="40">alive</text>',
        '<circle cx="52" cy="110" r="8" style="fill:#607d8b"/>',
        '<circle cx="998" cy="185" r="8" style="fill:none;stroke:#607d8b;stroke-width:2"/>',
    ]
    for name, (x, y) in BOXES.items():
        kind = "ended" if name in ENDED else "status"
        size = f'width="{WIDTH}" height="{HEIGHT}" rx="8"'
        lines.append(f'<rect class="{kind}" x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" {size}/>')
        lines.append(f'<text class="status" x="{x}" y="{y + 5}">{name}</text>')
    for (source, target), found in sorted(arrows().items()):
        arrow = ARROWS[source, target]
        names = _with_children(found) if source == "suspended" else found
        lines.append(f'<path d="{arrow.path}" marker-end="url(#tip)"/>')
        top = arrow.y if arrow.down else arrow.y - LINE_PX * (len(names) - 1)
        for number, name in enumerate(names):
            place = f'x="{arrow.x}" y="{top + LINE_PX * number}" text-anchor="{arrow.anchor}"'
            lines.append(f'<text class="script" {place}>{escape(name)}</text>')
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")

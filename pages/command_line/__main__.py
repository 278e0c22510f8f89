"""`python -m pages.command_line`: run the page's commands once more, and draw its pictures."""

from __future__ import annotations

import asyncio

from pages.command_line.pictures import draw
from pages.command_line.story import PAGE, played

if __name__ == "__main__":
    PAGE.write_text(asyncio.run(played(PAGE.read_text("utf-8"))), "utf-8")
    asyncio.run(draw())

"""`python -m pages.redis_cli`: run the guide's commands once more, and write what they print."""

from __future__ import annotations

import asyncio
import logging

from pages.redis_cli.guide import PAGE, played

if __name__ == "__main__":
    logging.disable()  # an order fails, as it should
    PAGE.write_text(asyncio.run(played(PAGE.read_text("utf-8"))), "utf-8")

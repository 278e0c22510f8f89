"""The log of a worker process: one line of text or one JSON object each, on stderr."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

from memable.current_step import step_in_progress

LOGGER: Final = "memable"

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PLACES: Final = ("workflow", "instance_id", "step")


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`; `workflow`, `instance_id`, `step` where they are known; `error` if any."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (step := step_in_progress()) is not None:
            fields |= {"workflow": step.workflow_name, "instance_id": step.instance_id, "step": step.key}
        # what the record itself says goes before where it was written
        fields |= {place: getattr(record, place) for place in _PLACES if hasattr(record, place)}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=repr)


def formatter(kind: Literal["text", "json"]) -> logging.Formatter:
    """The formatter for `MEMABLE_LOG_FORMAT`."""
    return JsonFormatter() if kind == "json" else logging.Formatter(_TEXT)


def set_up_logging(kind: Literal["text", "json"], level: int = logging.INFO) -> None:
    """Have memable's log written to stderr; where the process has set up handlers, they are left alone."""
    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(kind))
    logger.addHandler(handler)
    logger.setLevel(level)

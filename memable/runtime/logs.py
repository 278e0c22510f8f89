"""The log of a worker process: one line of text or one JSON object each, on stderr."""

from __future__ import annotations

import json
import logging
import re
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal

from memable.current_step import step_in_progress
from memable.keys import InstanceKeys, split_instance_name
from memable.trace_context import span_context

LOGGER: Final = "memable"

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_instance: ContextVar[InstanceKeys | None] = ContextVar("memable_instance", default=None)


def enter_instance(keys: InstanceKeys) -> None:
    """From now on whatever is logged in this context, and in what is started from it, concerns this instance."""
    _instance.set(keys)


def about(name: str) -> dict[str, str]:
    """The `extra` of a record that concerns the instance `WF/ID`, for who speaks of many."""
    workflow, instance_id = split_instance_name(name)
    return {"workflow": workflow, "instance_id": instance_id}


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`; where known `workflow`, `instance_id`, `step` (its key), `attempt`.

    While a span of OpenTelemetry is current `trace_id` and `span_id`; then what the record was given as `extra`; of an
    exception `error`, its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (step := step_in_progress()) is not None:
            fields |= {"workflow": step.workflow_name, "instance_id": step.instance_id}
            fields |= {"step": step.key, "attempt": step.attempt}
        elif (keys := _instance.get()) is not None:
            fields |= {"workflow": keys.workflow, "instance_id": keys.instance_id}
        if (span := span_context()) is not None:
            fields |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        # what the record itself says goes before where it was written
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in _FIXED}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return _written(fields)


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _written(fields: dict[str, object]) -> str:
    """One line, whatever was given as `extra`: a log call must neither fail nor be lost for what it shows."""
    try:
        line = _dumps(fields)
    except Exception:  # whose repr raises, which contains itself, which is too deep; NaN, a key that is no text
        line = _dumps({name: _presentable(value) for name, value in fields.items()})
    # it has no UTF-8: the stream would refuse the whole line; nor would every reader of JSON take its escape
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", line)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=repr)


def _presentable(value: object) -> object:
    try:
        _dumps(value)
    except Exception:
        return _represented(value)
    return value


def _represented(value: object) -> str:
    try:
        return repr(value)
    except Exception as failure:
        return f"<{type(value).__name__}: {type(failure).__name__}>"


_FIXED: Final = frozenset({"time", "level", "logger", "message", "error"})
_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "asctime", "taskName"})
"""What every record has; the rest is what it was given as `extra`."""


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

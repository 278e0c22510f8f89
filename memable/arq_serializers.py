"""How arq's jobs and results are written in Redis: as JSON, never as pickle, which runs whatever its author likes.

memable's workers read and write arq's jobs this way. A plain arq client does the same to be understood by them:

    pool = await arq.create_pool(
        RedisSettings(), job_serializer=job_serializer, job_deserializer=job_deserializer
    )
    await pool.enqueue_job("memable.invoke", "order", {"id": "42"}, _job_id="order-42")

Arguments and results are plain JSON: `dict` with string keys, `list`, `str`, `int`, `float`, `bool`, `None`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from memable.codec import UNTYPED, Codec, from_json

__all__ = ["JobFailed", "job_deserializer", "job_serializer"]

_ERROR = "x"
"""The field, beside those of arq, that has the exception with which a job ended."""

_LATEST_MS = 10**14
"""A time that `datetime` still has: a later one would end the worker that reads it."""

_plain = Codec(max_payload_bytes=sys.maxsize).of(UNTYPED)


class JobFailed(RuntimeError):
    """What an arq job raised in its worker: `error_type` is the class's name, `error_message` its text."""

    def __init__(self, error_type: str, error_message: str) -> None:
        super().__init__(f"{error_type}: {error_message}")
        self.error_type, self.error_message = error_type, error_message


def job_serializer(data: dict[str, Any]) -> bytes:
    """arq's record of a job or a result as JSON; `SerializationError` for what has no exact JSON form."""
    record = {**data, "a": list(data["a"])}
    result = record.get("r")
    if isinstance(result, BaseException):
        record["r"] = None
        record[_ERROR] = {"type": type(result).__name__, "message": _text(result)}
    return _plain.encode(record, f"arq job {data.get('f')}")


def job_deserializer(raw: bytes) -> dict[str, Any]:
    """The record that `job_serializer` wrote; `ValueError` for anything else, which is looked at and never executed."""
    record = _checked(from_json(raw))
    if isinstance(error := record.get(_ERROR), dict):
        kind, message = str(error.get("type")), str(error.get("message"))
        # arq knows an aborted job by this class
        record["r"] = asyncio.CancelledError() if kind == "CancelledError" else JobFailed(kind, message)
    return record


def _checked(record: Any) -> dict[str, Any]:
    """arq believes every field, and the whole worker would end with the one that is of another type."""
    if not isinstance(record, dict):
        raise ValueError(f"an arq job is a JSON object, not {type(record).__name__}")
    kinds = {"f": str, "a": list, "k": dict, "et": int}
    wrong = [name for name, kind in kinds.items() if type(record.get(name)) is not kind]
    if record.get("t") is not None and type(record["t"]) is not int:
        wrong.append("t")
    if not wrong and not 0 <= record["et"] <= _LATEST_MS:
        wrong.append("et")
    if wrong:
        raise ValueError(f"an arq job with a wrong or missing {', '.join(map(repr, wrong))}")
    return record


def _text(error: BaseException) -> str:
    try:
        # lone surrogates, which JSON has no form for, must not take the rest of the text with them
        return str(error).encode(errors="replace").decode()
    except Exception:
        return "its text cannot be had"

"""What a caller hands over, an input or a payload: checked and made JSON before anything is written."""

from __future__ import annotations

from typing import Any, Final

from memable.announcement import Announcement
from memable.codec import UNTYPED, Codec, json_type
from memable.errors import InputMissing, SerializationError, TypeMismatch
from memable.exactness import PLAIN_SCALARS, type_name
from memable.holding import Payload
from memable.missing import MISSING
from memable.workflow import SuspendPoint, Workflow

_NOTHING: Final = b"null"
_PLAIN: Final = PLAIN_SCALARS | {list, dict}


def encode_input(codec: Codec, workflow: Workflow[Any, Any] | Announcement, value: object, subject: str) -> bytes:
    """The JSON of an input that fits the workflow.

    `InputMissing`, `TypeMismatch`, `SerializationError`, `PayloadTooLarge`. A workflow that takes no input is given
    none, or `None`. For one that takes an input, `None` is one only if its type says so.
    """
    if not workflow.takes_input:
        if value is not MISSING and value is not None:
            raise TypeMismatch(subject, expected="no input", found=type_name(value))
        return _NOTHING
    if isinstance(workflow, Workflow):
        typed = codec.of(workflow.input_type)
        if value is MISSING or (value is None and "null" not in typed.json_types):
            raise InputMissing(workflow.name)
        return typed.encode(value, subject)
    if value is MISSING or (value is None and "null" not in workflow.input_types):
        raise InputMissing(workflow.name)
    raw = _encode_by_value(codec, value, subject)
    if (found := json_type(raw)) not in workflow.input_types:
        raise TypeMismatch(subject, expected=" or ".join(sorted(workflow.input_types)), found=found)
    return raw


def encode_payload(codec: Codec, point: SuspendPoint[Any] | str, value: object, subject: str) -> Payload:
    """The payload of a signal: by the point's type, or by its own where the point is a bare key, and so a message's.

    Errors as for an input.
    """
    if isinstance(point, str):
        raw, tag = _encode_by_value(codec, value, subject), ""
    else:
        declared = codec.of(point.type)
        raw, tag = declared.encode(value, subject), declared.tag
    return Payload(tag, json_type(raw), raw)


def _encode_by_value(codec: Codec, value: object, subject: str) -> bytes:
    """For a receiver whose type is not known here: plain JSON as it is, a model, a datetime … by its own type."""
    if type(value) in _PLAIN:
        return codec.of(UNTYPED).encode(value, subject)
    try:
        own = codec.of(type(value))
    except TypeError as error:
        raise SerializationError(f"{subject} cannot be sent: {error}") from error
    return own.encode(value, subject)

"""How the workers of a namespace announce their workflows, so that others can check an input without the code.

`ns:workflows` holds one JSON object a workflow:

    {"takes_input":true,"input_types":["object"],"input_schema":{…},"output_schema":null,"retention_ms":604800000,"deadline_ms":null}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memable.annotations import ALL_JSON_TYPES
from memable.codec import Codec, from_json, to_json
from memable.damage import reading
from memable.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a worker has said of a workflow."""

    name: str
    takes_input: bool
    input_types: frozenset[str]
    """The JSON types that its input may have; an integer is a `number`."""
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    retention_ms: int | None
    deadline_ms: int | None


def announcement(workflow: Workflow[Any, Any], codec: Codec, retention_s: float | None = None) -> bytes:
    """The JSON to announce `workflow` with; `TypeError` if its input or output is of a type that cannot be stored.

    `retention_s`, of the worker's settings, goes before what the workflow and the app say.
    """
    kept_s = retention_s or workflow.retention.total_seconds()
    input_codec = codec.of(workflow.input_type) if workflow.takes_input else None
    return to_json(
        {
            "takes_input": workflow.takes_input,
            "input_types": sorted(input_codec.json_types) if input_codec else [],
            "input_schema": input_codec.schema if input_codec else None,
            "output_schema": codec.returned_by(workflow.fn).schema,
            "retention_ms": round(kept_s * 1000),
            "deadline_ms": workflow.deadline_ms,
        }
    )


def parse(name: str, raw: bytes) -> Announcement:
    """The announcement of workflow `name` from its JSON; `Damaged` if it is none."""
    with reading(f"what is announced of workflow {name!r}"):
        said: dict[str, Any] = from_json(raw)
        return Announcement(
            name=name,
            takes_input=bool(said["takes_input"]),
            input_types=frozenset(said.get("input_types", ALL_JSON_TYPES)),
            input_schema=said.get("input_schema"),
            output_schema=said.get("output_schema"),
            retention_ms=said.get("retention_ms"),
            deadline_ms=said.get("deadline_ms"),
        )

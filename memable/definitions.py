"""What is known of workflows here: from the app of this process, or from what workers have announced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memable.announcement import Announcement
from memable.codec import Codec
from memable.errors import InputMissing, TypeMismatch, WorkflowNotFound
from memable.inputs import encode_input
from memable.keys import check_name
from memable.reading import Reader
from memable.workflow import DEFAULT_RETENTION, App, Workflow

AnyWorkflow = Workflow[Any, Any] | str


def name_of(workflow: AnyWorkflow) -> str:
    """The workflow's name; `InvalidKey` for what cannot be one."""
    return workflow.name if isinstance(workflow, Workflow) else check_name("workflow", workflow)


class Definitions:
    """What this process knows of workflows, and learns from Redis when it has to."""

    def __init__(self, codec: Codec, app: App | None, reader: Callable[[], Reader]) -> None:
        self._codec, self._app, self._reader = codec, app, reader
        self._announced: dict[str, Announcement] = {}

    def own(self, workflow: AnyWorkflow) -> Workflow[Any, Any] | None:
        """The workflow, if its types are known here."""
        if isinstance(workflow, Workflow):
            return workflow
        return None if self._app is None else self._app.get(workflow)

    async def known(self, workflow: AnyWorkflow) -> Workflow[Any, Any] | Announcement:
        """What is known of the workflow's input, here or from its workers; `WorkflowNotFound`."""
        if (own := self.own(workflow)) is not None:
            return own
        name = name_of(workflow)
        return self._announced.get(name) or await self._ask(name)

    async def encode(self, known: Workflow[Any, Any] | Announcement, value: object, subject: str) -> bytes:
        """The JSON of an input that fits the workflow, as `known` says; errors as for `encode_input`."""
        try:
            return encode_input(self._codec, known, value, subject)
        except (InputMissing, TypeMismatch):
            # a new version of the workflow may have been announced since we asked
            if isinstance(known, Workflow) or (said := await self._ask(known.name)) == known:
                raise
            return encode_input(self._codec, said, value, subject)

    async def retention_ms(self, workflow: AnyWorkflow) -> int:
        """For how long an instance that ends now is kept: as its workers say, who may be told so by their settings."""
        name = name_of(workflow)
        said = self._announced.get(name) or await self._reader().announced(name)
        if said is not None and said.retention_ms is not None:
            self._announced[name] = said
            return said.retention_ms
        own = self.own(workflow)
        return round((DEFAULT_RETENTION if own is None else own.retention).total_seconds() * 1000)

    async def _ask(self, name: str) -> Announcement:
        reader = self._reader()
        said = await reader.announced(name)
        if said is None:
            raise WorkflowNotFound(name, reader.namespace)
        self._announced[name] = said
        return said

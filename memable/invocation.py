"""`Invocation`: a handle on one instance."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from memable.codec import UNTYPED
from memable.errors import WorkflowCancelled, WorkflowFailed
from memable.reading import Failure, Seen
from memable.retry import Duration, to_seconds
from memable.state import Status, WorkflowMetadata, WorkflowState
from memable.watching import Aim
from memable.workflow import SuspendPoint, Workflow

if TYPE_CHECKING:
    from memable.client import Client

O_co = TypeVar("O_co", covariant=True)
T = TypeVar("T")


class Invocation(Generic[O_co]):
    """A handle on one instance; `O_co` is the type of its result. Made by a client, without I/O."""

    __slots__ = ("_client", "_workflow", "created", "instance_id", "workflow_name")

    def __init__(
        self,
        client: Client,
        workflow_name: str,
        instance_id: str,
        *,
        workflow: Workflow[Any, O_co] | None,
        created: bool = False,
    ) -> None:
        self._client = client
        self._workflow = workflow
        self.workflow_name = workflow_name
        self.instance_id = instance_id
        self.created = created
        """Whether the call that gave this handle has started the instance."""

    async def wait(self, timeout: Duration | None = None) -> WorkflowState:
        """The state in which the instance comes to rest: terminal, or suspended.

        Returns at once if it is at rest now. `timeout` (seconds or `timedelta`; 0 asks once) ends the waiting with
        `TimeoutError`, and leaves the instance alone. `InstanceNotFound` if it never was, or is gone.
        """
        return (await self._first(Aim.AT_REST, timeout)).state

    async def result(self, timeout: Duration | None = None) -> O_co:
        """What the workflow returned, once it has: of the type that it declares, if the workflow is known here.

        Waits while the instance is suspended, too. `WorkflowFailed` or `WorkflowCancelled` if it ends otherwise;
        `timeout`, `TimeoutError` and `InstanceNotFound` as for `wait`.
        """
        seen = await self._first(Aim.OVER, timeout)
        match seen.state.status:
            case Status.FAILED:
                failure = Failure.parse(seen.error or b"{}")
                raise WorkflowFailed(
                    self.workflow_name,
                    self.instance_id,
                    error_type=failure.error_type,
                    error_message=failure.error_message,
                    failed_step=failure.failed_step,
                )
            case Status.CANCELLED:
                raise WorkflowCancelled(self.workflow_name, self.instance_id, seen.state.message)
            case _:
                return self._decoded(seen.output or b"null")

    def _decoded(self, output: bytes) -> O_co:
        codec = self._client._codec
        declared = codec.of(UNTYPED) if self._workflow is None else codec.returned_by(self._workflow.fn)
        value: O_co = declared.decode(output, f"the result of {self.workflow_name}/{self.instance_id}")
        return value

    async def _first(self, aim: Aim, timeout: Duration | None) -> Seen:
        timeout_s = None if timeout is None else to_seconds(timeout, "timeout")
        online = self._client._online()
        return await online.watcher.first(online.store.keys.of(self.workflow_name, self.instance_id), aim, timeout_s)

    def states(self) -> AsyncGenerator[WorkflowState]:
        """As `Client.subscribe`."""
        return self._client.subscribe(self.workflow_name, self.instance_id)

    @overload
    async def signal(
        self, point: SuspendPoint[T], payload: T, *, buffer: bool = False, signal_id: str | None = None
    ) -> None: ...
    @overload
    async def signal(
        self,
        point: SuspendPoint[None] | str,
        payload: Any = None,
        *,
        buffer: bool = False,
        signal_id: str | None = None,
    ) -> None: ...

    async def signal(
        self, point: SuspendPoint[Any] | str, payload: Any = None, *, buffer: bool = False, signal_id: str | None = None
    ) -> None:
        """As `Client.signal`."""
        await self._client.signal(
            self.workflow_name, self.instance_id, point, payload, buffer=buffer, signal_id=signal_id
        )

    async def send(self, mailbox: str, message: Any, *, message_id: str | None = None) -> None:
        """As `Client.send`."""
        await self._client.send(self.workflow_name, self.instance_id, mailbox, message, message_id=message_id)

    async def resume(self, *, rerun: Iterable[SuspendPoint[Any] | str] = ()) -> None:
        """As `Client.resume`."""
        await self._client.resume(self.workflow_name, self.instance_id, rerun=rerun)

    async def cancel(self, *, reason: str | None = None) -> WorkflowState:
        """As `Client.cancel`."""
        return await self._client.cancel(self.workflow_name, self.instance_id, reason=reason)

    async def metadata(self) -> WorkflowMetadata | None:
        """As `Client.get_metadata`."""
        return await self._client.get_metadata(self.workflow_name, self.instance_id)

    def __repr__(self) -> str:
        return f"<Invocation {self.workflow_name}/{self.instance_id}>"

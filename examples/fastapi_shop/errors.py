"""Which answer each of memable's errors is: the first class of which it is an instance."""

from typing import Final

from fastapi import Request
from fastapi.responses import JSONResponse

from memable import (
    InputConflict,
    InstanceBusy,
    InstanceNotFound,
    InvalidCursor,
    InvalidKey,
    InvalidLabel,
    MemableError,
    NotStarted,
    PayloadTooLarge,
    SerializationError,
    SignalRejected,
    SignalSuperseded,
    StorageError,
    TypeMismatch,
)

STATUS_CODES: Final[dict[type[MemableError], int]] = {
    InstanceNotFound: 404,
    InputConflict: 409,
    InstanceBusy: 409,
    SignalSuperseded: 409,
    SignalRejected: 409,
    PayloadTooLarge: 413,
    InvalidKey: 422,
    InvalidLabel: 422,
    InvalidCursor: 422,
    TypeMismatch: 422,
    SerializationError: 422,
    # Redis is away, or says that it is full: nothing was done, or it can be done again
    StorageError: 503,
    NotStarted: 503,
}


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Every route's answer to an error of memable; one that is not in the table is a fault of ours: 500."""
    code = next((code for kind, code in STATUS_CODES.items() if isinstance(error, kind)), 500)
    # the texts name workflows and ids; what is no fault of the caller's is for our log
    detail = str(error) if code < 500 else "try again later"
    return JSONResponse({"detail": detail}, code, headers={"Retry-After": "5"} if code == 503 else None)

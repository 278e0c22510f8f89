"""Every knob that a deployment can turn: `MEMABLE_…` in the environment, or a keyword here. Times are in seconds.

pydantic-settings takes longer to import than all the rest of memable, so this file is only imported by who needs it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from memable.codec import DEFAULT_MAX_PAYLOAD_BYTES
from memable.errors import InvalidKey, SettingsError
from memable.keys import check_namespace

PREFIX: Final = "MEMABLE_"

_SECRET: Final = frozenset({"redis_url"})
"""Settings whose value may hold a password, and is never shown."""

_MAX_PARTITIONS: Final = 16384  # the slots of a Redis Cluster


class Settings(BaseSettings):
    """What a client, an engine or a worker is told by its surroundings; a keyword goes before the environment.

    >>> Settings(concurrency=10).concurrency
    10
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    redis_url: str = Field(
        default="redis://localhost:6379",
        repr=False,
        description="redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH, where Redis is",
    )
    namespace: str = Field(
        default="memable", description="1 to 100 letters, digits and any of _ . : - that every key begins with"
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=_MAX_PARTITIONS,
        description="a whole number from 1 to 16384, the same for all who use the namespace (unset: what it has, or 1)",
    )
    concurrency: int = Field(
        default=100, ge=1, description="a whole number from 1, of instances that a worker process runs at once"
    )
    lease: float = Field(
        default=3.0,
        ge=1,
        allow_inf_nan=False,
        description="seconds, at least 1, that a worker may be silent before others take over what it runs",
    )
    shutdown_grace: float = Field(
        default=30.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds, at least 0, for which a worker that is told to stop lets its runs go on",
    )
    retention: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="seconds, more than 0, that a terminal instance is kept (unset: what the app or the workflow says)",
    )
    max_payload: int = Field(
        default=DEFAULT_MAX_PAYLOAD_BYTES,
        ge=1,
        description="a whole number of bytes from 1, that an input, a result or a signal may have as JSON",
    )
    max_records: int = Field(
        default=10_000,
        ge=1,
        description="a whole number from 1, of records (steps, signals, timers …) that an instance may have",
    )
    max_recoveries: int = Field(
        default=5,
        ge=1,
        description="a whole number from 1, of workers that an instance kills in a row before it is failed",
    )
    park_grace: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds, at least 0, for which a run awaits what is no durable call before it parks",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="text or json, in which a worker writes its log"
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="a port from 1 to 65535, or 0 for any, where a worker serves metrics and health (unset: none)",
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="the address at which it does: 0.0.0.0 or :: in a container, else nobody outside can reach it",
    )

    @field_validator("namespace")
    @classmethod
    def _checked_namespace(cls, value: str) -> str:
        try:
            return check_namespace(value)
        except InvalidKey as error:
            raise ValueError(str(error)) from error


def load_settings(base: Settings | None = None, **overrides: Any) -> Settings:
    """The settings of the environment, or those of `base`, with `overrides` before them; `None` overrides nothing.

    `SettingsError`, one line that names each variable, its value and what is allowed; never a password.
    """
    given = {} if base is None else base.model_dump()
    given.update((name, value) for name, value in overrides.items() if value is not None)
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(dict.fromkeys(_complaints(error, given)))) from None


def _complaints(error: ValidationError, given: dict[str, Any]) -> list[str]:
    return [_complaint(str(each["loc"][0]), each["input"], given) for each in error.errors(include_url=False)]


def _complaint(name: str, value: object, given: dict[str, Any]) -> str:
    field = Settings.model_fields.get(name)
    if field is None:
        return f"there is no setting {name!r}: choose from {', '.join(Settings.model_fields)}"
    source = f"setting {name}" if name in given else PREFIX + name.upper()
    shown = "a value that is not shown" if name in _SECRET else repr(value)
    return f"{source} is {shown}; allowed: {field.description}"

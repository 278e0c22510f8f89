"""`memable worker` and `memable dev`: processes that run the workflows of an app."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import click

from memable.cli.lifeline import hold_on
from memable.cli.loading import app_name, load_app
from memable.cli.options import NAMESPACE_OPTION, URL_OPTION
from memable.cli.root import FINE
from memable.client import connect
from memable.settings import Settings, load_settings
from memable.workflow import App

DATA_DIR: Final = Path(".memable")

_APP = click.argument("app", metavar="MODULE:APP", callback=app_name)
_CONCURRENCY = click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="How many instances each process runs at once. [default: MEMABLE_CONCURRENCY, or 100]",
)


@click.command(short_help="Run the workflows of MODULE:APP.")
@_APP
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, show_default=True, help="How many worker processes."
)
@_CONCURRENCY
@click.option("--burst", is_flag=True, help="End when nothing is queued or running.")
@URL_OPTION
@NAMESPACE_OPTION
@click.option("--lifeline", type=int, hidden=True)  # the pipe of whoever has started this process
def worker(
    *,
    app: str,
    processes: int,
    concurrency: int | None,
    burst: bool,
    url: str | None,
    namespace: str | None,
    lifeline: int | None,
) -> int:
    """Run the workflows of MODULE:APP, as 'arq' does with worker_settings(app).

    SIGTERM and Ctrl-C: take no more work, let runs end within MEMABLE_SHUTDOWN_GRACE, hand the rest back. A process
    that dies is replaced, when there is more than one. With MEMABLE_METRICS_PORT the first serves metrics and health
    there, and each further one at the next port.
    """
    if lifeline is not None:
        hold_on(lifeline)
    settings = load_settings(redis_url=url, namespace=namespace, concurrency=concurrency)
    loaded = load_app(app)
    if processes == 1:
        return _work(loaded, settings, burst=burst)
    # before there are several of them to say the same
    asyncio.run(_check(settings))
    # the URL may have a password in it, which a command line shows to everybody
    os.environ["MEMABLE_REDIS_URL"] = settings.redis_url
    os.environ["MEMABLE_NAMESPACE"] = settings.namespace
    os.environ["MEMABLE_CONCURRENCY"] = str(settings.concurrency)
    return asyncio.run(_supervise([app, *(["--burst"] if burst else [])], processes, settings, is_burst=burst))


@click.command(short_help="Run MODULE:APP on a laptop, with a Redis of its own.")
@_APP
@_CONCURRENCY
@NAMESPACE_OPTION
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), default=DATA_DIR, show_default=True)
def dev(*, app: str, concurrency: int | None, namespace: str | None, data_dir: Path) -> int:
    """Run the workflows of MODULE:APP on this machine, with a Redis of its own that keeps what it is told.

    With MEMABLE_REDIS_URL that Redis is used, and none is started, unless it is the URL of its own.
    """
    loaded = load_app(app)
    settings = load_settings(namespace=namespace, concurrency=concurrency)
    with _server(settings, data_dir) as url:
        click.echo(f"Redis:     {_without_password(url)}")
        click.echo(f"look in:   {redis_cli(url)}")
        click.echo(f"connect:   export MEMABLE_REDIS_URL={shlex.quote(_without_password(url))}")
        click.echo("Ctrl-C ends it.")
        return _work(loaded, settings.model_copy(update={"redis_url": url}), burst=False)


def redis_cli(url: str) -> str:
    """The command that opens a shell at `url`; a password is left to be typed."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return shlex.join(["redis-cli", "-s", unquote(parts.path)])
    words = ["redis-cli", "-h", parts.hostname or "localhost", "-p", str(parts.port or 6379)]
    if (database := parts.path.strip("/")) not in ("", "0"):
        words += ["-n", database]
    if parts.username:
        words += ["--user", unquote(parts.username)]
    if parts.password:
        words.append("--askpass")
    if parts.scheme == "rediss":
        words.append("--tls")
    return shlex.join(words)


def _work(app: App, settings: Settings, *, burst: bool) -> int:
    # not at the top: arq takes as long to import as all the rest
    from memable.runtime.arq_host import run

    run(app, settings=settings, burst=burst)
    return FINE


async def _check(settings: Settings) -> None:
    async with connect(settings=settings):
        pass


async def _supervise(arguments: list[str], processes: int, settings: Settings, *, is_burst: bool) -> int:
    from memable.cli.fleet import Fleet
    from memable.runtime.logs import set_up_logging

    set_up_logging(settings.log_format, logging.INFO)
    return await Fleet(arguments, processes, is_burst=is_burst, metrics_port=settings.metrics_port).run()


@contextmanager
def _server(settings: Settings, data_dir: Path) -> Iterator[str]:
    from memable.embedded import ensure_server, is_server_of, leave_server

    # its own URL is exported for other commands, as it says itself; its server has ended with whoever used it last
    if os.environ.get("MEMABLE_REDIS_URL") and not is_server_of(data_dir, settings.redis_url):
        yield settings.redis_url
        return
    url = ensure_server(data_dir)
    try:
        yield url
    finally:
        if leave_server(data_dir):
            click.echo(f"Redis runs on, since others are connected; what ends it: {redis_cli(url)} SHUTDOWN")


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":…@")

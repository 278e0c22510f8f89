"""One open connection, taken over from redis-py once it has logged in: on asyncio and on uvloop, plain and with TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memable.connection import Endpoint
from memable.endpoint import Wire, pack
from memable.errors import StorageError
from tests.integration.connecting import connected, wait_until
from tests.proxy import Proxy
from tests.worker_process import TOO_LONG_S


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    kind = pytest.importorskip(request.param)
    with asyncio.Runner(loop_factory=kind.new_event_loop) as runner:
        yield runner


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, signed by itself, with its key."""
    made = tmp_path_factory.mktemp("tls") / "both.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    try:
        subprocess.run(
            ["openssl", *words.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", made, "-out", made],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("needs openssl, to make a certificate")
    return made


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "TLS"])
def test_all_loops_and_lines_carry_much_and_come_back_when_cut(
    loop: asyncio.Runner, redis_url: str, certificate: Path, is_plain: bool
) -> None:
    tls, trusting = None, ""
    if not is_plain:
        trusting = f"?ssl_ca_certs={certificate}"
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    payloads = [bytes([i]) * 200_000 for i in range(30)]

    async def carry() -> None:
        async with Proxy(redis_url, tls=tls) as proxy, connected(f"{proxy.url}{trusting}") as connection:
            assert await asyncio.gather(*[connection.command("ECHO", each) for each in payloads]) == payloads
            first = connection.connected_at_s
            answers = [connection.command("ECHO", i) for i in range(100)]
            proxy.cut()
            assert await asyncio.gather(*answers) == [b"%d" % i for i in range(100)]
            await wait_until(lambda: connection.connected_at_s not in (first, None))

    loop.run(carry())


def test_what_is_asked_upon_an_answer_leaves_in_the_turn_after_it_arrived(
    loop: asyncio.Runner, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, heard_in, turns = 0, 0, list[int]()

    def count() -> Iterator[None]:
        nonlocal turn
        while True:
            turn += 1
            counting.append(asyncio.get_running_loop().call_soon(next, counter))
            yield

    counting: list[asyncio.Handle] = []
    counter = count()
    hear, write = Wire.data_received, Wire.write

    def note_hearing(wire: Wire, data: bytes) -> None:
        nonlocal heard_in
        heard_in = turn
        hear(wire, data)

    def note_writing(wire: Wire, data: bytes) -> None:
        turns.append(turn - heard_in)
        write(wire, data)

    async def ask() -> None:
        async with connected(redis_url) as connection:
            await connection.command("PING")
            next(counter)
            for _ in range(20):
                await connection.command("PING")
            counting[-1].cancel()

    monkeypatch.setattr(Wire, "data_received", note_hearing)
    monkeypatch.setattr(Wire, "write", note_writing)
    loop.run(ask())
    assert set(turns[-19:]) == {1}


async def test_an_answer_that_nobody_asked_for_costs_the_connection_and_no_call(proxy: Proxy) -> None:
    async with connected(proxy.url) as connection:
        first, wire = connection.connected_at_s, connection._wire
        assert wire is not None
        wire.write(pack(("PING",)))
        await wait_until(lambda: connection.connected_at_s not in (first, None))
        assert await asyncio.gather(*[connection.command("ECHO", i) for i in range(9)]) == [b"%d" % i for i in range(9)]


async def test_what_arrives_before_anybody_takes_it_is_kept(redis_url: str) -> None:
    wire = await Wire.open(Endpoint.from_url(redis_url))
    taken: list[Any] = []

    def take(replies: list[Any]) -> None:
        taken.extend(replies)
        if len(taken) == 3:
            raise ValueError("enough")

    wire.write(pack(("ECHO", 1)))
    await wait_until(lambda: bool(wire._found))
    delivering = asyncio.create_task(wire.deliver(take))
    await wait_until(lambda: taken == [b"1"])
    for number in (2, 3):
        wire.write(pack(("ECHO", number)))
    with pytest.raises(ValueError, match="enough"):
        await delivering
    assert taken == [b"1", b"2", b"3"]
    await wire.close()


def test_a_connection_that_is_lost_while_it_is_taken_over_is_noticed(loop: asyncio.Runner, redis_url: str) -> None:
    async def take_over_and_ask() -> None:
        async with Proxy(redis_url) as proxy:
            endpoint = Endpoint.from_url(proxy.url)
            connection: Any = endpoint.connection()
            await connection.connect()
            proxy.cut()
            reader: asyncio.StreamReader = connection._reader
            await wait_until(lambda: reader.at_eof() or reader.exception() is not None)
            wire = Wire(endpoint, connection)
            try:
                async with asyncio.timeout(TOO_LONG_S):
                    await wire.exchange("PING")
            finally:
                await wire.close()

    with pytest.raises(StorageError, match="closed the connection"):
        loop.run(take_over_and_ask())

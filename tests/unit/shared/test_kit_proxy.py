"""Each thing that the network emulator does to connections, on real sockets."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kit.proxy import HOST, Proxy
from tests.kit.proxy_pacing import Conditions
from tests.kit.proxy_thread import ProxyThread
from tests.kit.tools import free_port
from tests.kit.wait import until

LIMIT_S = 5.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A port that answers what it hears; a line `end` makes it close."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while (data := await reader.read(65_536)) and data != b"end":
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def dial(proxy: Proxy) -> Streams:
    host, port = proxy.address.split(":")
    return await asyncio.open_connection(host, int(port))


async def asked(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    async with asyncio.timeout(LIMIT_S):
        return await reader.readexactly(len(data))


async def hears_nothing(streams: Streams) -> None:
    """Nothing arrived so far, and the socket stands."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await streams[0].read(1)
    assert not streams[0].at_eof()


async def test_both_ways_are_counted() -> None:
    async with echo() as port, Proxy(port) as proxy:
        first, second = await dial(proxy), await dial(proxy)
        assert await asked(first, b"12345") == b"12345"
        assert await asked(second, b"678") == b"678"
        assert (proxy.up_bytes, proxy.down_bytes) == (8, 8)
        assert [c.up.num_bytes for c in proxy.connections] == [5, 3]


async def test_each_way_has_its_own_delay_and_small_writes_do_not_queue_behind_each_other() -> None:
    up, down = Conditions(delay_ms=30.0), Conditions(delay_ms=10.0)
    async with echo() as port, Proxy(port, up=up, down=down) as proxy:
        streams = await dial(proxy)
        began_s = time.perf_counter()
        for _ in range(100):
            streams[1].write(b"x")
            await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            await streams[0].readexactly(100)
        took_s = time.perf_counter() - began_s
        assert 0.039 < took_s < 100 * 0.040 / 2


async def test_order_is_kept_whatever_the_jitter() -> None:
    async with echo() as port, Proxy(port, up=Conditions(jitter_ms=5.0)) as proxy:
        streams = await dial(proxy)
        sent = [bytes([number]) * 3 for number in range(50)]
        for part in sent:
            streams[1].write(part)
            await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            assert await streams[0].readexactly(150) == b"".join(sent)


async def test_a_rate_is_shared_by_all_connections_of_a_direction() -> None:
    up = Conditions(bytes_per_s=1e6, burst_bytes=0)
    async with echo() as port, Proxy(port, up=up) as proxy:
        began_s = time.perf_counter()
        ways = [await dial(proxy) for _ in range(2)]
        await asyncio.gather(*(asked(way, bytes(30_000)) for way in ways))
        assert time.perf_counter() - began_s > 0.055


async def test_a_sender_waits_where_the_link_is_full() -> None:
    up = Conditions(bytes_per_s=1e5, burst_bytes=0)
    async with echo() as port, Proxy(port, up=up) as proxy:
        _, writer = await dial(proxy)
        writer.write(bytes(32 << 20))
        await until(lambda: proxy.up_bytes > 0)
        await asyncio.sleep(0.02)
        assert proxy.up_bytes < 1 << 20
        writer.transport.abort()


async def test_a_cut_resets_both_ends_and_new_connections_are_taken() -> None:
    async with echo() as port, Proxy(port) as proxy:
        streams = await dial(proxy)
        await asked(streams, b"x")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)
        assert await asked(await dial(proxy), b"again") == b"again"


async def test_a_half_open_connection_takes_bytes_and_says_nothing() -> None:
    async with echo() as port, Proxy(port) as proxy:
        streams = await dial(proxy)
        await asked(streams, b"x")
        proxy.half_open()
        streams[1].write(b"lost")
        await hears_nothing(streams)
        new = await dial(proxy)
        new[1].write(b"lost too")
        await hears_nothing(new)
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)
        assert await asked(await dial(proxy), b"healed") == b"healed"


async def test_a_one_way_cut_lets_the_other_way_pass() -> None:
    async with echo() as port, Proxy(port) as proxy:
        streams = await dial(proxy)
        await asked(streams, b"x")
        proxy.down.change(is_cut=True)
        streams[1].write(b"heard")
        await until(lambda: proxy.connections[0].down.has_lost)
        await hears_nothing(streams)
        assert proxy.up_bytes == 6


async def test_what_has_lost_nothing_survives_a_short_cut() -> None:
    async with echo() as port, Proxy(port) as proxy:
        streams = await dial(proxy)
        await asked(streams, b"x")
        proxy.half_open()
        proxy.heal()
        assert await asked(streams, b"y") == b"y"


async def test_new_connections_may_be_refused_and_taken_again_on_the_same_port() -> None:
    async with echo() as port, Proxy(port) as proxy:
        streams = await dial(proxy)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await dial(proxy)
        assert await asked(streams, b"stands") == b"stands"
        await proxy.accept()
        assert await asked(await dial(proxy), b"again") == b"again"


async def test_an_end_travels_behind_the_bytes_before_it_and_both_sockets_close() -> None:
    async with echo() as port, Proxy(port, down=Conditions(delay_ms=10.0)) as proxy:
        streams = await dial(proxy)
        streams[1].write(b"last words")
        async with asyncio.timeout(LIMIT_S):
            assert await streams[0].readexactly(10) == b"last words"
            streams[1].write(b"end")
            assert await streams[0].read() == b""
        streams[1].close()
        await until(lambda: not proxy.connections[0].is_open, what="both sockets closed")


async def test_a_target_that_does_not_listen_ends_the_connection() -> None:
    async with Proxy(free_port()) as proxy:
        reader, _ = await dial(proxy)
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)


async def test_a_thread_of_proxies_serves_and_is_changed_from_outside() -> None:
    async with echo() as port:
        with ProxyThread() as links:
            proxy = links.open(port, up=Conditions(delay_ms=5.0))
            streams = await dial(proxy)
            began_s = time.perf_counter()
            assert await asked(streams, b"x") == b"x"
            assert time.perf_counter() - began_s > 0.0049
            links.do(proxy.refuse)
            with pytest.raises(ConnectionRefusedError):
                await dial(proxy)
            links.accept(proxy)
            links.do(lambda: proxy.change(delay_ms=0.0))
            assert await asked(await dial(proxy), b"y") == b"y"
        with pytest.raises(ConnectionResetError):
            await streams[0].read()

"""What is counted, and how it is served."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest

from nsqtools.cli.prometheus import of_consumers, served
from nsqtools.config.consuming import MetricsOptions
from nsqtools.engine.totals import ConsumerStats
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.metrics import Metric, Sample
from nsqtools.names import Address, listening_address
from tests.support.metrics import get, values
from tests.support.scripted import undisturbed

ANY = Address("127.0.0.1", 0)
SOME = Metric(
    "x_total",
    "counter",
    'It is "so"\nand \\ so.',
    [Sample({"topic": "a", "kind": 'quo"te\\\n'}, 2), Sample({"topic": "b", "kind": "é"}, 0.5)],
)


@asynccontextmanager
async def serving(*metrics: Metric) -> AsyncIterator[Address]:
    async with undisturbed(), served(ANY, lambda: metrics) as address:
        assert address
        yield address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        (":9090", Address("127.0.0.1", 9090)),
        (":0", Address("127.0.0.1", 0)),
        ("localhost:0", Address("localhost", 0)),
        (" [::1]:9090 ", Address("::1", 9090)),
    ],
)
def test_a_host_may_be_left_out_and_a_port_may_be_0(text: str, address: Address | None) -> None:
    options = MetricsOptions(metrics_address=text)
    assert listening_address(options.metrics_address) == address


@pytest.mark.parametrize(
    "text", ["9090", "localhost", ":", ":65536", "::1:9", "http://x:1", "x:1,y:2"]
)
def test_what_is_no_address_is_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^metrics_address: address '"):
        MetricsOptions(metrics_address=text)


class TestServing:
    async def test_labels_and_help_come_through_in_the_format_that_the_client_prefers(self) -> None:
        accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        async with serving(SOME) as address:
            reply = await get(address)
            preferred = await get(address, headers=accept)
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = values(reply.text)
        assert found["x_total", 'quo"te\\\n', "a"] == 2
        assert found["x_total", "é", "b"] == 0.5
        assert "# TYPE x_total counter\n" in reply.text
        assert preferred.headers["content-type"].startswith("application/openmetrics-text; ")
        assert preferred.text.endswith("\n# EOF\n")

    async def test_other_paths_and_methods_are_refused_and_head_has_no_body(self) -> None:
        async with serving(SOME) as address:
            head = await get(address, method="HEAD")
            assert (head.status_code, head.content) == (200, b"")
            assert int(head.headers["content-length"]) > 100
            assert (await get(address, "/")).status_code == 200
            assert (await get(address, "/metrics?x=1")).status_code == 200
            missing = await get(address, "/stats")
            assert missing.status_code == 404
            posted = await get(address, method="POST", content=b"x")
            assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")

    @pytest.mark.parametrize(
        ("error", "status", "logged"),
        [(ZeroDivisionError("oops"), 500, 2), (UnreachableError("no poll within 5s"), 503, 0)],
    )
    async def test_an_error_in_counting_costs_a_scrape_and_nothing_else(
        self, error: Exception, status: int, logged: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with served(ANY, AsyncMock(side_effect=error)) as address:
            assert address
            assert [(await get(address)).status_code for _ in range(2)] == [status] * 2
        assert sum("ZeroDivisionError" in told for told in caplog.messages) == logged

    async def test_where_it_is_is_logged_and_at_the_end_nobody_is_there(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        async with serving() as address:
            reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""  # an idle connection keeps nothing from ending
        writer.close()
        assert [f"http://{address}/metrics" in told for told in caplog.messages] == [True]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    @pytest.mark.parametrize(
        ("host", "reason"),
        [
            ("127.0.0.1", "address already in use"),
            ("no-such-host.invalid", "no such host"),
        ],
    )
    @pytest.mark.usefixtures("no_such_name")
    async def test_where_nobody_can_listen_is_an_error_of_one_line(
        self, host: str, reason: str
    ) -> None:
        async with serving() as taken:
            address = Address(host, taken.port)
            with pytest.raises(ConfigError, match=rf"^--metrics-address: .*{address}: {reason}"):
                async with served(address, tuple):
                    pytest.fail("it serves")


def test_a_topic_has_each_metric_from_the_start_on() -> None:
    metrics = list(of_consumers({"t": ConsumerStats()}, "c"))
    assert metrics
    for metric in metrics:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.samples == [({"topic": "t", "channel": "c"}, 0)]

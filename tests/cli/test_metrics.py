"""What is counted, and how it is served."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nsqtools import __version__
from nsqtools.cli.consumers import Consumers
from nsqtools.cli.metrics import of_consumers, served
from nsqtools.cli.run import consume
from nsqtools.config import ConsumerConfig, MetricsOptions, SourceOptions, StopOptions
from nsqtools.engine.membership import Subscription
from nsqtools.engine.stats import ConsumerStats
from nsqtools.errors import ConfigError
from nsqtools.metrics import Metric, Sample
from nsqtools.names import Address
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering
from tests.support.loaded import run_python
from tests.support.metrics import get, kinds, values
from tests.support.scripted import Network, undisturbed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tests.support.scripted import ScriptedNsqd

ANY = Address("127.0.0.1", 0)
SOME = Metric(
    "x_total",
    "counter",
    'It is "so"\nand \\ so.',
    [Sample({"topic": "a", "kind": 'quo"te\\\n'}, 2), Sample({"topic": "b", "kind": "é"}, 0.5)],
)


def given(text: str) -> Address | None:
    return MetricsOptions(metrics_address=text).address


@asynccontextmanager
async def serving(*metrics: Metric) -> AsyncIterator[Address]:
    async with undisturbed(), served(ANY, lambda: metrics) as address:
        assert address
        yield address


class TestOption:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("", None),
            (":9090", Address("127.0.0.1", 9090)),
            (":0", Address("127.0.0.1", 0)),
            ("0.0.0.0:9090", Address("0.0.0.0", 9090)),
            ("localhost:0", Address("localhost", 0)),
            (" [::1]:9090 ", Address("::1", 9090)),
            ("[::]:0", Address("::", 0)),
        ],
    )
    def test_a_host_may_be_left_out_and_a_port_may_be_0(
        self, text: str, address: Address | None
    ) -> None:
        assert given(text) == address

    @pytest.mark.parametrize(
        "text",
        ["9090", "localhost", ":", "x:", ":-1", ":65536", "::0", "::1:9", "http://x:1", "x:1,y:2"],
    )
    def test_what_is_no_address_is_an_error_that_names_the_option(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"^--metrics-address: address '"):
            given(text)


class TestServing:
    async def test_a_scrape_reads_the_values_of_that_moment(self) -> None:
        count = 0

        def collect() -> Iterable[Metric]:
            yield Metric("seen_total", "counter", "Seen.", [Sample({}, count)])
            yield Metric("level", "gauge", "Now.", [Sample({}, -count)])

        async with served(ANY, collect) as address:
            assert address
            for count in (1, 5):
                found = values((await get(address)).text)
                assert (found[("seen_total",)], found[("level",)]) == (count, -count)

    async def test_labels_and_help_come_through_whatever_is_in_them(self) -> None:
        async with serving(SOME) as address:
            reply = await get(address)
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = values(reply.text)
        assert found["x_total", 'quo"te\\\n', "a"] == 2
        assert found["x_total", "é", "b"] == 0.5
        assert kinds(reply.text)["x_total"] == "counter"

    async def test_the_process_and_its_release_are_told_besides(self) -> None:
        async with serving() as address:
            text = (await get(address)).text
        assert values(text)["nsqtools_build_info", __version__] == 1
        if sys.platform == "linux":
            assert values(text)[("process_cpu_seconds_total",)] > 0

    async def test_a_client_that_prefers_openmetrics_gets_that(self) -> None:
        async with serving(SOME) as address:
            accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
            reply = await get(address, headers=accept)
        assert reply.headers["content-type"].startswith("application/openmetrics-text; ")
        assert reply.text.endswith("\n# EOF\n")

    async def test_a_metric_without_samples_is_no_error(self) -> None:
        async with serving(Metric("none_total", "counter", "None.", [])) as address:
            assert kinds((await get(address)).text)["none_total"] == "counter"

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

    async def test_an_error_in_counting_costs_a_scrape_and_nothing_else(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def collect() -> list[Metric]:
            raise ZeroDivisionError("oops")

        async with served(ANY, collect) as address:
            assert address
            assert [(await get(address)).status_code for _ in range(2)] == [500, 500]
        assert ["ZeroDivisionError" in told for told in caplog.messages] == [True, True]

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
            ("x" * 64 + ".invalid", "no such host"),
            ("203.0.113.1", "cannot assign requested address"),
        ],
    )
    async def test_where_nobody_can_listen_is_an_error_of_one_line(
        self, host: str, reason: str
    ) -> None:
        async with serving() as taken:
            address = Address(host, taken.port)
            with pytest.raises(ConfigError, match=rf"^--metrics-address: .*{address}: {reason}"):
                async with served(address, tuple):
                    pytest.fail("it serves")

    async def test_a_taken_address_ends_a_run_before_it_has_touched_anything(self) -> None:
        sink = Gathering()
        source = SourceOptions(topic=("t",), nsqd_tcp_address=("127.0.0.1:1",))
        async with serving() as taken:
            with pytest.raises(ConfigError, match="--metrics-address"):
                await consume(
                    source,
                    "c",
                    ConsumerConfig(),
                    StopOptions(),
                    sink,
                    metrics=MetricsOptions(metrics_address=str(taken)),
                )
        assert sink.said == []

    def test_without_an_address_nothing_is_loaded(self) -> None:
        script = (
            "import asyncio, sys, nsqtools.cli.run, nsqtools.cli.metrics as m\n"
            "async def main():\n"
            "    async with m.served(None, tuple) as address: print(address)\n"
            "asyncio.run(main())\n"
            "print({'prometheus_client', 'nsqtools.sandbox', 'http.server'} & set(sys.modules))\n"
        )
        assert run_python(script) == "None\nset()\n"


class Running:
    """Consumers of a channel c into a sink that settles when told."""

    def __init__(self, nsqd: ScriptedNsqd, **config: object) -> None:
        self.sink = Gathering()
        self._nsqd = nsqd
        self.consumers = Consumers(
            self.sink,
            ConsumerConfig(max_in_flight=100, reconnect_delay=1.0).with_values(**config),
            count=0,
            retry=60.0,
            all_fail=False,
            on_reached=bool,
            silence=None,
        )

    async def add(self, *topics: str) -> None:
        if not hasattr(self.sink, "failed"):
            await self.sink.open()
        for topic in topics:
            self.consumers.add(Subscription(topic=topic, channel="c", nsqds=(self._nsqd.address,)))
        await elapse(0.1)

    async def take(self, *bodies: bytes) -> None:
        self._nsqd.publish(*bodies)
        await elapse(0.1)

    async def stop(self) -> None:
        self.consumers.stop()
        await self.consumers.done()

    def counted(self, topic: str, *names: str) -> list[float]:
        metrics = of_consumers(self.consumers.by_topic(), "c")
        found = {
            metric.name.removeprefix("nsqtools_"): sample.value
            for metric in metrics
            for sample in metric.samples
            if sample.labels == {"topic": topic, "channel": "c"}
        }
        return [found[name] for name in names]


TAKEN = ("messages_received_total", "received_bytes_total", "messages_finished_total")
REST = ("messages_touched_total", "messages_given_up_total", "messages_timed_out_total")
HELD = ("messages_in_flight", "connections", "connections_opened_total")


class TestCounting:
    def test_a_topic_has_each_metric_from_the_start_on(self) -> None:
        metrics = list(of_consumers({"t": ConsumerStats()}, "c"))
        assert {metric.name for metric in metrics} == {
            f"nsqtools_{name}"
            for name in (*TAKEN, *HELD, "messages_requeued_total", "backoff_level", *REST)
        }
        for metric in metrics:
            assert metric.name.endswith("_total") == (metric.kind == "counter")
            assert metric.help.endswith(".")
            assert metric.samples == [({"topic": "t", "channel": "c"}, 0)]

    @virtual
    async def test_each_topic_has_values_of_its_own_from_the_start_on(self) -> None:
        running = Running(Network().nsqd())
        await running.add("a")
        await running.take(b"one", b"three")
        await running.add("b")
        assert running.counted("a", *TAKEN, *HELD) == [2, 8, 0, 2, 1, 1]
        assert running.counted("b", *TAKEN, *HELD) == [0, 0, 0, 0, 1, 1]
        running.sink.flush()
        assert running.counted("a", *TAKEN, *HELD) == [2, 8, 2, 0, 1, 1]
        await running.stop()

    @virtual
    async def test_counters_outlive_connections(self) -> None:
        nsqd = Network().nsqd()
        running = Running(nsqd)
        await running.add("t")
        await running.take(b"1", b"2")
        nsqd.break_off()
        await elapse(0.1)
        assert running.counted("t", *TAKEN, *HELD) == [2, 2, 0, 0, 0, 1]
        await elapse(10)
        await running.take(b"3")
        running.sink.flush()
        assert running.counted("t", *TAKEN, *HELD) == [3, 3, 1, 0, 1, 2]
        await running.stop()

    @virtual
    async def test_counters_of_a_dropped_topic_stay_and_go_on_when_it_comes_back(self) -> None:
        running = Running(Network().nsqd())
        await running.add("t")
        await running.take(b"1", b"2")
        running.consumers.drop("t")
        await elapse(1)
        assert running.consumers.topics == 0
        assert running.counted("t", *TAKEN, *HELD) == [2, 2, 2, 0, 0, 1]
        await running.add("t")
        await running.take(b"3")
        assert running.counted("t", *TAKEN, *HELD) == [3, 3, 2, 1, 1, 2]
        await running.stop()
        assert running.counted("t", *TAKEN, *HELD) == [3, 3, 3, 0, 0, 2]

    @virtual
    async def test_a_topic_that_is_never_reached_has_zeros(self) -> None:
        nsqd = Network().nsqd()
        nsqd.refuses = lambda text: "E_BAD_TOPIC no" if text.startswith("SUB bad ") else None
        running = Running(nsqd)
        await running.add("good", "bad")
        assert running.counted("bad", *TAKEN, *HELD) == [0] * 6
        await running.stop()

    @virtual
    async def test_failures_show_as_backoff_and_as_requeued_messages(self) -> None:
        running = Running(Network().nsqd(), backoff_multiplier=1.0)
        running.sink.failing_flushes = 2
        await running.add("t")
        await running.take(b"1", b"2")
        assert running.counted("t", "backoff_level") == [0]
        running.sink.flush()
        assert running.counted("t", "backoff_level", "messages_requeued_total") == [1, 2]
        await running.stop()
        assert running.counted("t", "backoff_level") == [0]

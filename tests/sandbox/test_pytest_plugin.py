"""The plugin as its users have it: a test file of theirs, run by pytest in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli.docs import sections
from nsqtools.config.sandbox import NsqdOptions
from nsqtools.errors import ConfigError
from nsqtools.names import Address
from nsqtools.sandbox.pytest import Nsq
from tests.support.examples import shown
from tests.support.raw import Raw

CONFTEST, TEST_OF_THE_GUIDE = shown(sections("library", "guides")["Tests of your own"])

if TYPE_CHECKING:
    from pathlib import Path

USERS_TEST = """
import pytest

from nsqtools.config.sandbox import NsqdOptions


def test_state_is_fresh(nsq):
    assert nsq.stats()["topics"] == []
    nsq.publish("t", "c")
    assert nsq.messages("t") == [b"c"]
    assert nsq.stats("t")["topics"][0]["message_count"] == 1


def test_and_fresh_again(nsq):
    assert nsq.stats()["topics"] == []


class TestOptions:
    @pytest.fixture
    def nsq_options(self):
        return NsqdOptions(max_msg_size=3)

    def test_options_are_the_users(self, nsq):
        with pytest.raises(Exception, match="expected 1 to 3"):
            nsq.publish("t", "long")


def test_a_failure_is_a_plain_assertion(nsq):
    nsq.publish("t", "x")
    nsq.messages("t", 2, timeout=0.01)
"""


def test_a_users_tests_publish_and_consume_without_nsqd(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_users.py").write_text(USERS_TEST)
    (tmp_path / "test_orders.py").write_text(TEST_OF_THE_GUIDE)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:asyncio"]
    done = subprocess.run(
        [*command, *plugins, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PATH": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    said = r"AssertionError: after 0\.01 s: topic t has [01] of 2 messages"
    assert re.search(said, done.stdout), done.stdout
    assert "Warning" not in done.stdout


def test_messages_are_read_in_order_and_only_once_if_there_are_enough() -> None:
    with Nsq() as nsq:
        nsq.publish("t", *map(str, range(100)))
        assert nsq.messages("t", 60) == [b"%d" % number for number in range(60)]
        with pytest.raises(AssertionError, match="topic t has 40 of 41 messages"):
            nsq.messages("t", 41, timeout=0.01)
        assert nsq.messages("t", 40) == [b"%d" % number for number in range(60, 100)]
        assert nsq.messages("t", 0) == []
        (channel,) = nsq.stats("t")["topics"][0]["channels"]
        nsq.wait_until_empty("t", channel["channel_name"])


def test_wait_until_empty_says_what_is_left() -> None:
    with Nsq() as nsq:
        with pytest.raises(AssertionError, match="after 0 s: channel t/c does not exist"):
            nsq.wait_until_empty("t", "c", timeout=0)
        nsq.publish("t", "1", "2", "3", defer=60)
        with Raw(Address.parse(nsq.nsqd_tcp_address)) as consumer:
            consumer.subscribe("t", "c", ready=1)
            nsq.publish("t", "4", "5")
            consumer.message()
            with pytest.raises(AssertionError, match="1 waiting messages, 1 in flight and 3 def"):
                nsq.wait_until_empty("t", "c", timeout=0)


def test_a_start_that_fails_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match="tls-cert"):
        Nsq(NsqdOptions(tls_cert="/nonexistent", tls_key="/nonexistent")).__enter__()
    assert threading.active_count() == before

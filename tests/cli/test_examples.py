"""The examples of the commands' help are lines that nsqtools takes.

What they do is said by the tests of each command and by the recipes of the cookbook.
"""

from __future__ import annotations

import pytest

from tests.support.command_lines import commands, parse
from tests.support.examples import LINES


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_a_line_that_nsqtools_takes(line: str) -> None:
    assert commands(line)
    for args in commands(line):
        parse(args)

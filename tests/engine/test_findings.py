"""The table of checks, and the guide that lists them."""

import re
from pathlib import Path

from nsqtools.engine.doctor.findings import BY_CODE, CHECKS

PACKAGE = Path(__file__).parents[2] / "nsqtools"


def test_codes_are_unique_in_order_used_and_listed_in_the_guide() -> None:
    codes = [check.code for check in CHECKS]
    assert codes == sorted(BY_CODE)
    source = "".join(path.read_text() for path in (PACKAGE / "engine/doctor").glob("*.py"))
    assert set(re.findall(r'fault\(\s*"(NSQ\d+)"', source)) == set(codes)
    guide = (PACKAGE / "cli/docs/guides/checks.md").read_text()
    rows = re.findall(r"^\| (NSQ\d+) \| (\w+) \| \S.* \| \S.* \|$", guide, re.MULTILINE)
    assert rows == [(each.code, each.severity) for each in CHECKS]

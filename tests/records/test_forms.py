"""The table of record formats, and the options that name them."""

import pytest

from nsqtools.config.lake import InputOptions
from nsqtools.config.records import ArchiveRecordOptions
from nsqtools.errors import ConfigError
from nsqtools.records.forms import FORMS, make_counter, make_reader, make_writer
from nsqtools.records.layout import Layout


def test_the_options_offer_every_form() -> None:
    assert ArchiveRecordOptions.declared()["format"].choices == tuple(FORMS)
    assert InputOptions.declared()["input_format"].choices == ("", *FORMS)


def test_an_unknown_format_is_an_error() -> None:
    unknown = Layout("csv")
    for make in (make_writer, make_reader, lambda of: make_counter(of, 100, is_plain=True)):
        with pytest.raises(ConfigError, match="csv"):
            make(unknown)
    with pytest.raises(ConfigError, match="delimiter"):
        make_counter(Layout("raw", b""), 100, is_plain=True)

"""A file system of pyarrow with the manners of HDFS, over local files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Callable


def _local(name: str, *, parents: bool = False) -> Any:
    """What a local file system does, after a stall."""

    def work(self: HdfsLike, path: Any, *_: Any) -> Any:
        self.stall()
        if parents:
            self.local.create_dir(os.path.dirname(path), recursive=True)
        return getattr(self.local, name)(path)  # the rest is metadata

    return work


def _none(*_: Any) -> None:
    raise AssertionError("a staging has no use for this call")


class HdfsLike(fs.FileSystemHandler):  # type: ignore[misc]
    """Stalls before each call, makes the directories of a new file, and replaces none by a move."""

    def __init__(self, stall: Callable[[], None] = lambda: None) -> None:
        self.local = fs.LocalFileSystem()
        self.stall = stall
        self.loses_responses = False

    def get_type_name(self) -> str:
        return "hdfs-like"

    def normalize_path(self, path: str) -> str:
        return path

    def create_dir(self, path: str, recursive: bool) -> None:
        self.stall()
        self.local.create_dir(path, recursive=recursive)

    def move(self, src: str, dest: str) -> None:
        self.stall()
        if os.path.isdir(dest):
            dest = os.path.join(dest, os.path.basename(src))
        try:
            os.link(src, dest)  # unlike a rename, it never replaces a file
            os.unlink(src)
        except OSError:
            raise OSError("HDFS rename failed, errno: 5 (Input/output error)") from None
        if self.loses_responses:
            raise OSError("HDFS rename failed, errno: 110 (Connection timed out)")

    get_file_info = get_file_info_selector = _local("get_file_info")
    delete_dir, delete_file = _local("delete_dir"), _local("delete_file")
    open_input_stream, open_input_file = _local("open_input_stream"), _local("open_input_file")
    open_output_stream = _local("open_output_stream", parents=True)
    delete_dir_contents = delete_root_dir_contents = copy_file = open_append_stream = _none

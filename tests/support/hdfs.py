"""A file system of pyarrow with the manners of HDFS, over local files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Callable


class HdfsLike(fs.FileSystemHandler):  # type: ignore[misc]
    """Stalls before each call, makes the directories of a new file, and moves into directories."""

    def __init__(self, stall: Callable[[], None] = lambda: None) -> None:
        self._local = fs.LocalFileSystem()
        self._stall = stall

    def get_type_name(self) -> str:
        return "hdfs-like"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        self._stall()
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        self._stall()
        return self._local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._stall()
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._stall()
        self._local.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._stall()
        self._local.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._stall()
        if os.path.isdir(dest):
            dest = os.path.join(dest, os.path.basename(src))
        try:
            os.rename(src, dest)
        except OSError:
            raise OSError("HDFS rename failed, errno: 5 (Input/output error)") from None

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        self._stall()
        return self._local.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        self._stall()
        return self._local.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._stall()
        self._local.create_dir(os.path.dirname(path), recursive=True)
        return self._local.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

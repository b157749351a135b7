"""Publishes the dead letters of a directory, and notes durably which ones are published."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from nsqtools.errors import RecordError
from nsqtools.redrive.letterfile import LetterFile, letter_files
from nsqtools.redrive.publishedlines import PublishedLines
from nsqtools.redrive.redriver import LARGEST_LOT
from nsqtools.sinks.threads import Threads, as_output_error

if TYPE_CHECKING:
    from nsqtools.redrive.letterfile import LetterLot
    from nsqtools.redrive.redriver import Choice, Redriver


class DirectoryRun:
    """One run over the files of a directory; messages go to ``topic`` or where they came from."""

    def __init__(
        self, folder: str, redriver: Redriver, choice: Choice, *, topic: str, max_msg_size: int
    ) -> None:
        self._folder = folder
        self._redriver = redriver
        self._choice = choice
        self._topic = topic
        self._max_msg_size = max_msg_size
        self._done = PublishedLines(folder)
        self._threads = Threads(1, "letters")
        self.staying = 0
        """Number of messages that were not chosen, or that nsqd refused."""
        self.unusable = 0
        """Number of lines without a message or a topic to publish."""
        self.is_complete = False
        """Whether the run ended by itself: all was read, or the limit was reached."""
        self.faults: list[str] = []
        """What is wrong with the files: changed, damaged, or with unusable lines."""

    async def run(self) -> None:
        """Publish until all is read, or until the redriver stops or has no room.

        A dry run needs no lock. Raises LockedError if another run has the directory, and
        OutputError if a file cannot be read, the journal cannot be written, or no nsqd answers.
        """
        try:
            with ExitStack() as held:
                if self._redriver.dry:
                    await self._threads.run(self._done.read)
                else:
                    held.enter_context(self._done)
                for name in await self._threads.run(letter_files, self._folder):
                    if not await self._run_file(os.path.join(self._folder, name)):
                        break
                self.is_complete = not self._redriver.stopping.is_set()
        except OSError as error:
            raise as_output_error(error) from error
        finally:
            self._threads.close()

    async def _run_file(self, path: str) -> bool:
        """Publish one file; return whether to go on with the next one."""
        file = LetterFile(path, self._choice, topic=self._topic, max_msg_size=self._max_msg_size)
        with ExitStack() as held:
            try:
                await self._threads.run(held.enter_context, file)
            except FileNotFoundError:  # removed meanwhile
                return True
            except RecordError as error:
                self.faults.append(str(error))
                return True
            try:
                if not self._redriver.dry:
                    await self._threads.run(file.sync)
                lots = file.lots(self._done.published(file.digest))
                while lot := await self._threads.run(next, lots, None):
                    if not await self._publish(file, lot):
                        return False
            except RecordError as error:
                self.faults.append(str(error))
            finally:
                self.staying += file.passed
                self.unusable += file.unusable
                self.faults += filter(None, (file.fault, file.damage))
        return True

    async def _publish(self, file: LetterFile, lot: LetterLot) -> bool:
        """Publish a lot, in parts if the rate wants it; return whether to go on."""
        while lot.bodies:
            room = min(LARGEST_LOT, self._redriver.room)
            if room < 1:
                return False
            part, lot = lot.split(room)
            if not await self._redriver.wait(len(part.bodies)):
                return False
            refused = await self._redriver.publish(part.topic, part.bodies, part.reasons)
            done = part.without(refused)
            if done and not self._redriver.dry:
                await self._threads.run(self._done.add, file.digest, file.name, done)
            if self._redriver.failure:
                raise self._redriver.failure
            self.staying += len(refused)
        return True

"""Dead letters in a topic, besides their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tgflow.streams.ingest.dead_letters import DeadLetter, DeadLetterSink, Length
from tgflow.streams.kafka.publish import Topic


class DeadLetterTopic:
    """Writes dead letters to files and to a topic as well; a `DeadLetterSink`.

    In the files each letter stands exactly once, in the topic at least once: going on after a crash
    sends those again that came after the last checkpoint. A letter's key is its place, as
    "edges:3:4711:0" (topic, partition, offset, row), by which a reader keeps one of each.

    Args:
        files: Where letters are written first, and what counts them.
        url: `kafka://HOST:PORT[,HOST:PORT...]/TOPIC`.
        options: Options of `kafka.KafkaProducer`; others, as a consumer's, are left out.

    Raises:
        PublishError: If the broker cannot be reached, or has no such topic and makes none.
    """

    def __init__(
        self, files: DeadLetterSink, url: str, options: Mapping[str, Any] | None = None
    ) -> None:
        self._files = files
        self._topic = Topic(url, options)

    @property
    def length(self) -> Length:
        """How much the files hold."""
        return self._files.length

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Write letters; `sync` makes sure of them.

        Raises:
            OSError: If these, or earlier ones, could not be written or sent.
        """
        letters = list(letters)
        self._files.write(letters)
        for letter in letters:
            key = ":".join(str(part) for part in letter.place.values())
            self._topic.send(letter.line(), None, key.encode())

    def sync(self) -> None:
        """Return once all letters are on the disk, and with the broker.

        Raises:
            OSError: If that is not certain.
        """
        self._files.sync()
        self._topic.flush()

    def rewind(self, length: Length) -> None:
        """Take back what the files hold beyond `length`; a topic gives nothing back.

        Raises:
            OSError: If the files hold less, or cannot be cut.
        """
        self._files.rewind(length)

    def close(self) -> None:
        """Make sure of all letters, then give files and connections back.

        Raises:
            OSError: If that is not certain.
        """
        try:
            self._topic.flush()
        finally:
            self._topic.close()
            self._files.close()

"""Lines typed by a person: editing and history through the standard readline, and bytes that are no text refused."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import readline
else:
    try:
        import readline
    except ImportError:  # a Python built without it still chats, without editing or history
        readline = None

HISTORY_LINES = 1000


class NotTextError(ValueError):
    """What came in is not valid UTF-8. The message says where."""


def checked_text(text: str, name: str) -> str:
    """`text` itself, where it is valid Unicode.

    Python hands on undecodable bytes of a terminal or an argument as lone surrogates, which protobuf cannot hold.

    Raises:
        NotTextError: it is not.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        what = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"lone surrogate U+{code:04X}"
        raise NotTextError(f"{name} is not valid UTF-8: {what} at character {error.start}; send UTF-8 text") from None
    return text


class LineReader:
    """Reads lines from the terminal and remembers them in `history_file`.

    A history that cannot be read or written is done without: it is a comfort, not a promise.
    """

    def __init__(self, history_file: Path | None) -> None:
        self._history_file = history_file
        # Bytes that are not UTF-8 become surrogates, which checked_text refuses with a sentence, and not a traceback.
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="surrogateescape")
        if readline is not None and history_file is not None:
            with contextlib.suppress(OSError, ValueError):
                readline.read_history_file(history_file)
            readline.set_history_length(HISTORY_LINES)

    def read(self, prompt: str) -> str:
        """The next line without its end.

        Raises:
            EOFError: the person closed the input (Ctrl-D).
            KeyboardInterrupt: Ctrl-C.
            NotTextError: the line is not valid UTF-8.
        """
        return checked_text(input(prompt), "the line")

    def save(self) -> None:
        """Write the history."""
        if readline is None or self._history_file is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self._history_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(self._history_file)
            self._history_file.chmod(0o600)

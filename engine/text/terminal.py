"""Model text on its way to a terminal, where some characters are commands."""

from __future__ import annotations

_C0_PICTURES = 0x2400  # ␀ and up: a picture for each control character
_DELETE, _DELETE_PICTURE = 0x7F, 0x2421
_REPLACEMENT = "\ufffd"
# Marks, embeddings, overrides and isolates that reorder what stands around them, and invisible tag characters.
_REORDERING = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINE_BREAKS = (0x2028, 0x2029)

_VISIBLE: dict[int, int | str | None] = {
    **{code: _C0_PICTURES + code for code in range(0x20)},
    _DELETE: _DELETE_PICTURE,
    **dict.fromkeys((*range(0x80, 0xA0), *_REORDERING, *range(0xD800, 0xE000)), _REPLACEMENT),
    **dict.fromkeys(_LINE_BREAKS, "\n"),
    **dict.fromkeys(range(0xE0000, 0xE0080), None),
    0xFEFF: None,
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): None,  # Windows line ends stay line ends; a lone one would overwrite the line
}


class TerminalText:
    """Makes the deltas of an answer harmless: no character of the model's reaches the terminal as a command.

    Control characters become visible pictures (ESC is ␛), so nothing the model said is lost, and characters that
    reorder or hide text become U+FFFD or vanish. Each character is judged alone: a sequence split over deltas is as
    harmless as a whole one. Newline and tab stay.
    """

    def push(self, text: str) -> str:
        """`text`, fit to be written to a terminal."""
        return text.translate(_VISIBLE)

    def finish(self) -> str:
        """Nothing is ever held back; this is here so that a pipeline can treat its stages alike."""
        return ""

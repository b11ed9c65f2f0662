"""Everything that gpucheck raises on purpose.

GpucheckError
├── UsageError      the request contradicts itself or names something unknown
├── InputError      a file, folder or pasted text that cannot be read as a machine
├── CatalogError    a catalog file that breaks its own form
└── NotCheckable    nothing could be looked at: exit code 3
"""

from __future__ import annotations


class GpucheckError(Exception):
    """A fault that a person can mend: one line that names the input and says what to do.

    Args:
        message: What is wrong, one sentence.
        input: The file, option or name that is at fault.
        hint: What to do about it.
    """

    exit_code = 2

    def __init__(self, message: str, *, input: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.input = input
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.input}: " if self.input else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"


class UsageError(GpucheckError):
    """The request contradicts itself or names something that is not known."""


class InputError(GpucheckError):
    """A file, folder or pasted text that cannot be read as a machine."""


class CatalogError(GpucheckError):
    """A catalog file that breaks its own form."""


class NotCheckable(GpucheckError):
    """Nothing could be looked at, so nothing can be said."""

    exit_code = 3

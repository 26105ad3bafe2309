"""The library's module, and how its results become exceptions."""
from ._faclient import ffi, lib

from . import errors


def sentence() -> str:
    return ffi.string(lib.fa_error()).decode(errors="replace")


def check(result: int) -> int:
    """Returns a result that is not negative; else raises the library's error."""
    if result < 0:
        raise errors.from_errno(result, sentence())
    return result


def new(kind: str, **fields):
    """A zeroed struct with its size set, as the library wants it."""
    struct = ffi.new(f"struct {kind} *")
    struct.size = ffi.sizeof(struct[0])
    for field, value in fields.items():
        setattr(struct, field, value)
    return struct


def string(text):
    """A C string, or NULL for None. The caller keeps it alive."""
    return ffi.NULL if text is None else ffi.new("char[]", text.encode())

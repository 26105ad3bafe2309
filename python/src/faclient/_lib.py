"""The library's module, and how its results become exceptions."""
from typing import Any

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


class Unique:
    """An object of this process's connection. A copy would outlive what the original frees."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} belongs to this process's connection, and can be neither "
                        "copied nor pickled; open it again where it is needed, by connect(), by the cache's or "
                        "sequence's name, or by fork()")

"""Exceptions: every error of the library is an `Error`, and also what Python programs expect."""
import errno as _errno
import os as _os


class Error(OSError):
    """An error of libfaclient. `errno` is the number, `strerror` the library's sentence."""


class DaemonLost(Error, ConnectionResetError):
    """The daemon went away, and the call with it."""


class Unreachable(Error, ConnectionError):
    """No daemon can be reached, or it is stopping."""


class TimedOut(Error, TimeoutError):
    """The daemon did not answer, or the request took too long."""


class Cancelled(Error):
    """The request was cancelled, or its step was aborted."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong; the sentence names it."""


class NotFound(Error, LookupError):
    """It does not exist, or this process may not know of it."""


class Stale(NotFound):
    """It existed, and was removed or lost."""


class Exists(Error, FileExistsError):
    """The name is taken."""


class NotAllowed(Error, PermissionError):
    """Its mode does not admit this call."""


class QuotaExceeded(Error):
    """More than this user may have."""


class OutOfMemory(Error, MemoryError):
    """No memory: of the pool, of the daemon or of this process."""


class NotSupported(Error, NotImplementedError):
    """The daemon, or its device, does not support it."""


class Forked(Error):
    """The client was connected before a fork; a child process connects anew."""


_CLASSES = {
    _errno.ECONNRESET: DaemonLost,
    _errno.ECONNREFUSED: Unreachable,
    _errno.ESHUTDOWN: Unreachable,
    _errno.ETIMEDOUT: TimedOut,
    _errno.ECANCELED: Cancelled,
    _errno.EINVAL: InvalidArgument,
    _errno.E2BIG: InvalidArgument,
    _errno.EMSGSIZE: InvalidArgument,
    _errno.ENAMETOOLONG: InvalidArgument,
    _errno.ENOENT: NotFound,
    _errno.ESTALE: Stale,
    _errno.EEXIST: Exists,
    _errno.EACCES: NotAllowed,
    _errno.EPERM: NotAllowed,
    _errno.EDQUOT: QuotaExceeded,
    _errno.ENOSPC: QuotaExceeded,
    _errno.ENOMEM: OutOfMemory,
    _errno.ENOTSUP: NotSupported,
    _errno.ENOSYS: NotSupported,
    _errno.ENODEV: NotSupported,
    _errno.ECHILD: Forked,
}


def from_errno(number: int, sentence: str) -> Error:
    """Returns the exception for a negative result of the library."""
    number = abs(number)
    # Classes that derive from OSError take a number and a text, and unlike OSError itself pick no
    # subclass.
    return _CLASSES.get(number, Error)(number, sentence or _os.strerror(number))

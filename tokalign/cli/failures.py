"""What the command line says of errors that no command expected: the reason and what to do."""

from __future__ import annotations

import errno

from tokalign.errors import OutputError, StdoutError, TokalignError, UsageError, is_out_of_memory
from tokalign.storage import DISK_ERRORS


def unwritten(error: OSError) -> StdoutError:
    """Why stdout takes no more."""
    if isinstance(error, BrokenPipeError):
        return StdoutError("stdout was closed by its reader before everything was written")
    return StdoutError(
        f"stdout cannot be written ({error.strerror or error}); "
        "give it a file on a disk with room, or leave it open"
    )


def explained(error: Exception) -> TokalignError:
    """What went wrong and what to do, for an error of ours, of the system or of full memory.
    Raises: any other one as it is, which is a mistake in the program."""
    if isinstance(error, TokalignError):
        return error
    if isinstance(error, OSError):
        return _of_the_system(error)
    if "home directory" in str(error):  # as pathlib and platformdirs say it
        return UsageError("you have no home folder; set HOME to one that you may write to")
    if is_out_of_memory(error):
        return TokalignError(
            "there is not enough memory; close other programs, or give a smaller model, less text "
            "or context (--max-kv-size), or in build a lower --memory"
        )
    raise error


def _of_the_system(error: OSError) -> TokalignError:
    """What the system refuses where no command expected it, with the path if there is one."""
    reason = error.strerror or str(error)
    if error.filename is None:  # what is open has no name: stdout, where click writes, and others
        if error.errno in (errno.EBADF, errno.EPIPE):
            return unwritten(error)
        no_place = "temporary directory" in reason  # as `tempfile` says of full disks, too
        if error.errno == errno.ENOENT and not no_place:  # `os.getcwd` names no path
            return UsageError("the current folder is gone; go to one that exists")
        remedy = "; make room on its disk, or set TMPDIR to a folder on another"
        what = f"stdout or a temporary file cannot be written ({reason}){remedy}"
        return OutputError(what if no_place or error.errno in DISK_ERRORS else reason)
    if error.errno in DISK_ERRORS:
        return OutputError(f"{error.filename}: {reason}; see to that disk, or give another path")
    return UsageError(f"{error.filename}: {reason}; give a path that you may use")

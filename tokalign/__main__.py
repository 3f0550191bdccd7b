"""The program `tokalign`, and `python -m tokalign`, for which Python puts the current folder first
on the path of modules.

Nothing is imported at the top: Ctrl-C is answered in one line from here on.
"""

import sys


def program() -> None:
    """The command line as a process, which leaves without the end of the libraries that it loaded.

    OpenBLAS waits for its threads then, for ever where one has gone before (`blas_thread_shutdown_`
    in OpenBLAS). Whatever is to be done at the end of Python has been done by that time.
    """
    status = 1  # of an error that was not expected; its traceback is printed before the end

    def leave() -> None:
        if "mlx.core" in sys.modules:
            from tokalign.cli.output import finish

            finish(sys.stdout)
            finish(sys.stderr)
            os._exit(status)

    try:
        import atexit
        import os
        import signal

        from tokalign.child_processes import end_once

        atexit.register(leave)
        signal.signal(signal.SIGTERM, end_once)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else of nohup
            signal.signal(signal.SIGHUP, end_once)
        from tokalign.cli import main

        main()
    except BaseException as error:
        # Before Python 3.12 what is raised while a class is made comes wrapped (`__set_name__`).
        wrapped = error.__cause__ if isinstance(error, RuntimeError) else None
        match wrapped or error:
            case SystemExit(code=code):
                status = int(code or 0)
            case KeyboardInterrupt():
                status = 130
            case _:
                raise
        if not isinstance(error, SystemExit):
            print("tokalign:", "interrupted" if status == 130 else "terminated", file=sys.stderr)
        sys.exit(status)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    program()

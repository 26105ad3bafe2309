"""python -m faclient: status, doctor, demo."""
import os
import sys

_USAGE = """\
Usage: python -m faclient COMMAND
  status [OPTION]...  what the daemon is doing; options are those of factl status
  doctor              what works here, what does not, and what to do about it
  demo                two programs, one prompt, one KV cache, and kill -9 (half a minute;
                      needs PyTorch and Transformers)
"""


def _status(options) -> int:
    program = os.path.join(os.path.dirname(__file__), "bin", "factl")
    if not os.access(program, os.X_OK):
        program = "factl"
    try:
        os.execvp(program, [program, "status", *options])
    except OSError as error:
        print(f"faclient: {program}: {error.strerror}", file=sys.stderr)
        return 1


def main() -> int:
    command, *options = sys.argv[1:] or [""]
    if command == "status":
        return _status(options)
    if command == "doctor" and not options:
        from . import _doctor
        return _doctor.main()
    if command == "demo":
        from . import _demo as demo
        if options[:1] == ["--worker"] and len(options) == 3:
            return demo.worker(*options[1:])
        if not options:
            return demo.main()
    asked = command in ("-h", "--help")
    print(_USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())

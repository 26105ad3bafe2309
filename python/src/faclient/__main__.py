"""python -m faclient status: what the daemon is doing, by its own factl."""
import os
import sys


def main() -> int:
    program = os.path.join(os.path.dirname(__file__), "bin", "factl")
    arguments = sys.argv[1:]
    if arguments[:1] != ["status"]:
        print("Usage: python -m faclient status [OPTION]...\nOptions are those of factl status.",
              file=sys.stdout if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    if not os.access(program, os.X_OK):
        program = "factl"
    try:
        os.execvp(program, [program, *arguments])
    except OSError as error:
        print(f"faclient: {program}: {error.strerror}", file=sys.stderr)
        return 1


sys.exit(main())

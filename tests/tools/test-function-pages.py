#!/usr/bin/env python3
"""The man pages of libfaclient: each exported symbol has one that mandoc formats, no comment of the
headers is lost on the way, the overviews name each function, and nothing in a page is warned of.

usage: test-function-pages.py MAN_DIRECTORY BUILT_DIRECTORY GENERATOR NM LIBRARY HEADER..."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

OVERVIEWS = ("faclient.3", "faclient_kv.3", "faclient_timeline.3")
failed = False


def check(condition, what):
    global failed
    if not condition:
        print("FAILED:", what)
        failed = True


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def exported(nm, library):
    lines = run(nm, "--dynamic", "--defined-only", library, check=True).stdout.split("\n")
    names = {line.split()[-1].split("@")[0] for line in lines if line}
    return {name for name in names if name.startswith("fa_")}


def words(text):
    return set(re.findall(r"[A-Za-z_]\w+", text))


def declared_text(header):
    """Comments and declarations, without the comments of the header and of its sections, which are
    for the overviews."""
    text = read(header)
    text = text[text.index("#define FACLIENT"):]
    text = re.sub(r"/\* ----.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"#ifdef __GNUC__.*?#endif", "", text, flags=re.DOTALL)
    text = re.sub(r"^#(?!define FA_).*$|^extern .*$|^struct \w+;$", "", text, flags=re.MULTILINE)
    return text


def check_complete(headers, formatted):
    found = words(" ".join(formatted.values()).replace("-\n", ""))
    for header in headers:
        expected = words(declared_text(header))
        check(len(expected) > 100, f"{header} has only {len(expected)} words")
        lost = expected - found
        check(not lost, f"no page has these words of {os.path.basename(header)}: {sorted(lost)}")


def format_pages(built):
    """What mandoc shows for each page; pages of one line (.so) are found in the folder man3."""
    with tempfile.TemporaryDirectory(prefix="fad-man-") as root:
        os.symlink(built, os.path.join(root, "man3"))
        formatted = {}
        for page in sorted(os.listdir(built)):
            if page.endswith(".3"):
                shown = run("mandoc", "-T", "ascii", "-O", "width=200", f"man3/{page}", cwd=root)
                check(not shown.returncode, f"{page}: {shown.stderr}")
                formatted[page] = re.sub(".\b", "", shown.stdout)
        return formatted


def lint(pages):
    for page in pages:
        if read(page).startswith(".so "):
            continue
        said = run("mandoc", "-T", "lint", "-W", "style", page)
        # Pages that are not installed yet.
        lines = [line for line in said.stdout.split("\n")
                 if line and "referenced manual not found" not in line]
        check(not lines, "\n".join(lines))


def check_generator(generator, date_of):
    """A comment that says nothing of its function is refused."""
    with tempfile.TemporaryDirectory(prefix="fad-man-") as root:
        header = os.path.join(root, "x.h")
        for comment, accepted in (("/* Returns x. */\n", True), ("/* For x. */\n", False),
                                  ("", False)):
            with open(header, "w", encoding="utf-8") as file:
                file.write(f"\n{comment}int fa_x(void);\n")
            done = run(generator, "--output", root, "--date-of", date_of, header)
            check((done.returncode == 0) == accepted, f"with {comment!r}: {done.stderr}")


def main():
    source, built, generator, nm, library, *headers = sys.argv[1:]
    pages = {page for page in os.listdir(built) if page.endswith(".3")}
    symbols = exported(nm, library)

    check(len(symbols) > 50, f"only {len(symbols)} symbols are exported")
    lost = {symbol for symbol in symbols if f"{symbol}.3" not in pages}
    check(not lost, f"without a page: {sorted(lost)}")
    listed = set(re.findall(r"Xr (fa_\w+) 3", "".join(read(os.path.join(source, page))
                                                     for page in OVERVIEWS)))
    check(symbols <= listed, f"in no overview: {sorted(symbols - listed)}")
    lost = {name for name in listed if f"{name}.3" not in pages}
    check(not lost, f"an overview names pages that are not there: {sorted(lost)}")
    check_generator(generator, os.path.join(source, OVERVIEWS[0]))
    if not shutil.which("mandoc"):
        print("without mandoc, the pages are not formatted")
        return 1 if failed else 0

    formatted = format_pages(built)
    for symbol in symbols:
        check(symbol in formatted.get(f"{symbol}.3", "").split("SYNOPSIS")[0],
              f"{symbol}(3) is not about {symbol}")
    check_complete(headers, formatted)
    lint([*(os.path.join(built, page) for page in sorted(pages)),
          *(os.path.join(source, page) for page in OVERVIEWS)])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

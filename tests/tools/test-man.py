#!/usr/bin/env python3
"""The man pages say what the programs take: options and commands as `--help` has them, the keys
of fad.conf with their defaults and the ranges that fad names. With mandoc or groff: nothing in them
is warned of.

usage: test-man.py PACKAGING_DIRECTORY FAD FACTL FABENCH"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Defaults that depend on the machine or the user: fad.conf has an example.
IN_WORDS = {"socket", "group", "device", "log", "buffer_bytes", "all_buffer_bytes", "device_bytes", "fds",
            "pool_bytes", "timelines", "bytes", "chunk_bytes"}
MOST = 2**63 - 1
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
SMALLEST = ".Dd January 1, 2000\n.Dt X 1\n.Os\n.Sh NAME\n.Nm x\n.Nd y\n"

failed = False


def check(condition, what):
    global failed
    if not condition:
        print("FAILED:", what)
        failed = True


def same(found, expected, what):
    check(found == expected,
          f"{what}: {sorted(expected - found)} missing, {sorted(found - expected)} too many")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def page_options(text):
    """-s of `Fl s`, --socket of `Fl -socket` or `Fl s , -socket`, and those written out."""
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    for options in re.findall(r"\bFl (-?[a-z][a-z-]*(?: , -?[a-z][a-z-]*)*)", text):
        found.update("-" + option for option in options.split(" , "))
    return found


def check_program(program, page):
    usage = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    text = read(page)
    name = os.path.basename(page)
    entries = re.findall(r"^\.It (.*)$", text, re.MULTILINE)
    options = set(OPTION.findall(usage))
    check(len(options) > 3, f"the options of {program} are not found")
    same(page_options("\n".join(entries)), options, f"{name}, options")
    same(page_options(text) - options, set(), f"{name}, options in text")

    # "  rm cache NAME    ..." is the command "rm cache".
    commands = {re.match(r"([a-z]+(?: [a-z]+)*)", line).group(1)
                for line in re.findall(r"^  ([a-z].*?)(?:  | \[|  *$| [A-Z])", usage,
                                       re.MULTILINE)}
    found = {entry.split(" Ar ")[0].replace("Cm ", "") for entry in entries
             if entry.startswith("Cm ")}
    same(found, commands, f"{name}, commands")
    return options, commands


def number(text):
    unit = "KMGT".find(text[-1]) + 1
    return int(text[:-1] if unit else text) << 10 * unit


def file_keys(text):
    """{(section, key): value}, commented out or not."""
    found, section = {}, None
    for line in text.splitlines():
        match = re.fullmatch(r"\[(\w+)\]", line)
        section = match.group(1) if match else section
        match = re.fullmatch(r"#?(\w+) = (.*)", line)
        if match:
            found[section, match.group(1)] = match.group(2)
    return found


def page_keys(text):
    """{(section, key): (default, range or None)}"""
    found = {}
    for part in re.split(r"^\.Ss ", text, flags=re.MULTILINE)[1:]:
        section = part[1:part.index("]")]
        for entry in re.split(r"^\.It Ic ", part, flags=re.MULTILINE)[1:]:
            key, _, rest = entry.partition("\n")
            stated, end, _ = rest.partition("\n.br\n")
            match = re.fullmatch(r"Default:\s(.*?)\s?\.(?:\nRange: (.*)\.)?", stated, re.DOTALL)
            check(match and end, f"fad.conf.5: {key} does not begin with its default")
            check((section, key) not in found, f"fad.conf.5 has {key} twice")
            found[section, key] = match.groups() if match else ("", None)
    return found


def check_range(fad, directory, section, key, stated):
    """The allowed values, as fad's error message lists them."""
    path = os.path.join(directory, "fad.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"[{section}]\n{key} = x\n")
    said = subprocess.run([fad, "--config", path, "--check-config"], capture_output=True,
                          text=True).stderr
    check(f"[{section}] has no" not in said, f"fad has no {key} in [{section}]")
    if "from 1% to 100%" in said:
        check(stated == "0 and above, or 1% to 100%", f"fad.conf.5: the range of {key} is {stated}")
        return
    match = re.search(r"expected a number from (\d+) to (\d+)", said)
    expected = match and tuple(map(int, match.groups()))
    if stated and stated.endswith(" and above"):
        found = number(stated.split()[0]), MOST
    else:
        found = stated and tuple(map(number, stated.split(" to ")))
    check(found == expected, f"fad.conf.5: {key} is from {found}, and {expected} to fad")


def check_keys(fad, conf, page):
    values, found = file_keys(read(conf)), page_keys(read(page))

    check(len(values) > 30, "the keys of fad.conf are not found")
    same(set(found), set(values), "fad.conf.5")
    same(IN_WORDS - {key for _, key in values}, set(), "this test knows keys that are none")
    with tempfile.TemporaryDirectory(prefix="fad-man-") as directory:
        for (section, key), (default, stated) in found.items():
            check_range(fad, directory, section, key, stated)
            if key in IN_WORDS:
                check(" " in default, f"fad.conf.5: {key} has no fixed default, not {default}")
            else:
                check(default == values.get((section, key)),
                      f"fad.conf.5: the default of {key} is {default}, "
                      f"not {values.get((section, key))}")


def lint(pages):
    def said(command, **kwargs):
        done = subprocess.run(command, capture_output=True, text=True, **kwargs)
        # groff prints the page itself, too.
        return done.stderr + (done.stdout if command[0].endswith("mandoc") else "")

    mandoc, groff = shutil.which("mandoc"), shutil.which("groff")
    if mandoc:
        command = [mandoc, "-T", "lint", "-W", "warning"]
    elif groff:
        command = [groff, "-mdoc", "-Tutf8", "-ww"]
        # Some groffs lack mdoc or warn about their own macros.
        if said(command, input=SMALLEST):
            return
    else:
        return
    for page in pages:
        warnings = said([*command, page])
        check(not warnings, f"{os.path.basename(page)}: {warnings}")


def main():
    packaging, fad, factl, fabench = sys.argv[1:]
    pages = {name: os.path.join(packaging, "man", name)
             for name in ("fad.8", "fad.conf.5", "factl.1", "fabench.1")}

    options, _ = check_program(fad, pages["fad.8"])
    _, commands = check_program(factl, pages["factl.1"])
    check("rm cache" in commands, f"the commands of factl are not found, but {commands}")
    _, commands = check_program(fabench, pages["fabench.1"])
    check("all" in commands, f"the benchmarks are not found, but {commands}")
    same(page_options(read(pages["fad.conf.5"])) - options, set(), "fad.conf.5, options of fad")
    check_keys(fad, os.path.join(packaging, "fad.conf"), pages["fad.conf.5"])
    lint(pages.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

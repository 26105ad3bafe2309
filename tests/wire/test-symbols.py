#!/usr/bin/env python3
"""Reads what the linker sees of libfaclient.

usage: test-symbols.py SHARED STATIC MAP HEADER NM READELF

The shared library needs libc alone and exports exactly what faclient.h
declares, which is what the symbol map lists. The static library gives C and C++
programs nothing but fa_*, and asks nothing of a run-time library of C++."""

import os
import re
import subprocess
import sys

# Symbols that builds with sanitizers or coverage add.
INSTRUMENTED_LIBRARY = re.compile(r"lib(asan|ubsan|tsan|lsan|clang_rt)[.\w-]*\.so[.\d]*")
INSTRUMENTED_SYMBOL = re.compile(
    r"_*(asan|ubsan|tsan|lsan|sanitizer|sancov|odr_asan|start_|stop_|gcov|llvm)\w*|[at]?san\..*|sancov\..*")
# The dynamic loader is part of libc.
LIBC = re.compile(r"libc\.so\.6|ld-linux[\w-]*\.so\.\d+")
CXX = re.compile(r"_Z.*|__cxa_(?!finalize$|atexit$).*|__gxx_.*|_Unwind_.*|__dynamic_cast")

errors = []


def expect(condition, sentence):
    if not condition:
        errors.append(sentence)


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declared(header):
    """The functions that faclient.h declares, with the headers beside it that it includes."""
    with open(header, encoding="utf-8") as file:
        text = file.read()
    beside = re.findall(r'^#include "(.*)"', text, flags=re.MULTILINE)
    for name in beside:
        with open(os.path.join(os.path.dirname(header), name), encoding="utf-8") as file:
            text += file.read()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.MULTILINE)
    return set(re.findall(r"\b(fa_\w+)\s*\(", text))


def mapped(symbol_map):
    """The global symbols of the version script; everything else has to be local."""
    with open(symbol_map, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    expect(re.search(r"local:\s*\*;", text), f"{symbol_map} does not end with local: *")
    text = re.sub(r"local:.*?\}", "}", text, flags=re.DOTALL)
    return set(re.findall(r"^\s*(\w+);", text, flags=re.MULTILINE))


def symbols(nm, path, *options):
    """(letter, name) of every symbol that nm prints."""
    for line in run(nm, "-P", *options, path).splitlines():
        match = re.match(r"(\S+) ([A-Za-z?])(?: |$)", line)
        if match:
            yield match.group(2), match.group(1)


def check_shared(path, nm, readelf, expected):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run(readelf, "-dW", path))
    expect("libc.so.6" in needed, f"{path} does not need libc: is it the library?")
    for name in needed:
        expect(LIBC.fullmatch(name) or INSTRUMENTED_LIBRARY.fullmatch(name),
               f"{path} needs {name}; expected libc alone")

    exported = set()
    for letter, name in symbols(nm, path, "-D", "--defined-only"):
        name = name.split("@")[0]
        if letter == "A":  # the name of a version
            continue
        expect(letter == "T", f"{path} exports {name} as {letter}; expected functions (T)")
        exported.add(name)
    for name in sorted(exported - expected):
        errors.append(f"{path} exports {name}, which faclient.h does not declare")
    for name in sorted(expected - exported):
        errors.append(f"{path} does not export {name}, which faclient.h declares")


def check_static(path, nm, expected):
    defined = set()
    for letter, name in symbols(nm, path, "--extern-only"):
        if INSTRUMENTED_SYMBOL.fullmatch(name):
            continue
        # operator new and delete are _Znwm, _Znam, _ZdlPv, …
        expect(not CXX.fullmatch(name),
               f"{path} {'asks for' if letter in 'Uwv' else 'defines'} the C++ symbol {name}")
        if letter in "Uwv":
            continue
        expect(letter not in "WVu", f"{path} defines {name} weakly ({letter})")
        expect(name.startswith("fa_"), f"{path} defines {name}; expected names that begin with fa_")
        defined.add(name)
    for name in sorted(expected - defined):
        errors.append(f"{path} lacks {name}")


def main():
    shared, static, symbol_map, header, nm, readelf = sys.argv[1:]
    functions = declared(header)
    listed = mapped(symbol_map)
    expect("fa_connect" in functions and len(functions) > 10,
           f"{header} was not understood: {sorted(functions)}")
    for name in sorted(functions ^ listed):
        where = "faclient.h" if name in functions else "the symbol map"
        errors.append(f"{name} stands in {where} alone")
    check_shared(shared, nm, readelf, functions)
    check_static(static, nm, functions)
    for sentence in errors:
        print(sentence)
    print(f"{len(functions)} functions, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

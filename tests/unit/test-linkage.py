#!/usr/bin/env python3
"""Every function with external linkage is called from another file of the product, or is tested by
itself (usage: test-linkage.py SOURCE_ROOT). Reads text, so it sees kernels, too; a call counts
wherever its name stands outside of comments and strings. First checks that the check can fail."""

import collections
import os
import re
import sys

PRODUCT = ("client", "common", "daemon", "demo", "kernels", "schema", "tools")
# Benchmarks and tests may call the product's functions, but none is kept for them alone.
TRIALS = ("bench", "tests")
SUFFIXES = (".c", ".cc", ".cu", ".cuh", ".def", ".h", ".S")
# Declares what programs call.
INSTALLED = re.compile(r"client/faclient\w*\.h")

COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
NAME = re.compile(r"\bfa_\w+")
# A declaration or definition starts at the left margin. What is static and no header's is checked by
# the compiler.
DECLARED = re.compile(r"^(?!static (?!inline)|typedef|\s|#|\}|return)[\w*][\w\s*,()\"]*?\b(fa_\w+)\([^;{}=]*?\)"
                      r"(?:\s*__attribute__\(\([^;{}]*\)\))?\s*[;{]", re.MULTILINE)


# GPU kernels are called by name.
KERNEL = re.compile(r"\b__global__\b[^;{]*")


def strip(text):
    text = COMMENT_OR_STRING.sub(lambda match: '""' if match[0][0] == '"' else " ", text)
    return KERNEL.sub(" ", text)


def wrong(product, trials):
    """Yields a sentence for every function of @product, {path: text}, that nothing calls, or that
    only its own file calls. @trials: the same of tests and benchmarks."""
    stripped = {path: strip(text) for path, text in product.items()}
    declared = collections.defaultdict(collections.Counter)  # name -> {path: declarations}
    public = set()
    for path, text in stripped.items():
        for name in DECLARED.findall(text):
            declared[name][path] += 1
            if INSTALLED.fullmatch(path):
                public.add(name)
    named = collections.defaultdict(collections.Counter)  # name -> {path: occurrences}
    for path, text in stripped.items():
        for name in NAME.findall(text):
            named[name][path] += 1
    tried = {name for text in trials.values() for name in NAME.findall(text)}
    for name in sorted(declared.keys() - public):
        calls = {path: n - declared[name][path] for path, n in named[name].items()
                 if n > declared[name][path]}
        where = " and ".join(sorted(declared[name]))
        if not calls:
            kind = "only tests or benchmarks call it" if name in tried else "nothing calls it"
            yield f"{name} of {where}: {kind}"
        elif name not in tried and set(calls) <= set(declared[name]) and all(
                path.endswith((".c", ".cc", ".cu")) for path in calls):
            yield f"{name} of {where}: only its own file calls it; expected it to be static"


def check_the_check():
    header = "/* fa_x() */\nint fa_x(struct fa_y *y);\n"
    body = "int fa_x(struct fa_y *y)\n{\n\treturn 0;\n}\n"
    call = "static int z(void)\n{\n\treturn fa_x(NULL);\n}\n"
    for product, trials, n in (
            ({"daemon/x.h": header, "daemon/x.c": body}, {}, 1),
            ({"daemon/x.h": header, "daemon/x.c": body}, {"tests/x.c": call}, 1),
            ({"daemon/x.h": header, "daemon/x.c": body + call}, {}, 1),
            ({"daemon/x.h": header, "daemon/x.c": body + call}, {"tests/x.c": call}, 0),
            ({"daemon/x.h": header, "daemon/x.c": body, "daemon/y.c": call}, {}, 0),
            ({"daemon/x.h": "static inline " + body, "daemon/y.c": "/* fa_x() */"}, {}, 1),
            ({"client/faclient.h": header, "client/x.c": body}, {}, 0)):
        if len(found := list(wrong(product, trials))) != n:
            sys.exit(f"the check is broken: {product} and {trials} gave {found}")


def read(root, folders):
    texts = {}
    for top in folders:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith(SUFFIXES):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        texts[os.path.relpath(path, root)] = file.read()
    return texts


def main():
    check_the_check()
    product = read(sys.argv[1], PRODUCT)
    found = list(wrong(product, read(sys.argv[1], TRIALS)))
    for sentence in found:
        print(sentence)
    print(f"{len(product)} files, {len(found)} functions")
    return 1 if found or len(product) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())

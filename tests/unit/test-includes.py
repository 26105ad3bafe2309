#!/usr/bin/env python3
"""Enforces which folder may include which (usage: test-includes.py SOURCE_ROOT).

Layers include only downwards, and each foreign library stays where the table
below puts it. First checks that the check itself can fail."""

import os
import re
import sys

# What the files of a folder may include from the project, besides their own folder.
LAYERS = {
    "common": [],
    "schema": ["common/"],
    "kernels": [],
    "client": ["common/", "schema/"],
    "daemon": ["common/", "schema/", "kernels/attention.h", "kernels/paged.h"],
    # the CUDA backend launches kernels that the tables name
    "daemon/backend/cuda": ["common/", "kernels/attention.h", "kernels/paged.h",
                            "kernels/cuda/plan.h", "kernels/cuda/paged-plan.h",
                            "kernels/cuda/images.h", "kernels/cuda/paged-images.h"],
    "daemon/backend/vulkan": ["common/", "kernels/attention.h", "kernels/paged.h",
                              "kernels/vulkan/plan.h"],
    # programs and tests are not layers: they may see everything below them
    "tools": ["common/", "schema/", "client/"],
    "bench": ["common/", "schema/", "client/", "kernels/attention.h", "kernels/paged.h",
              "kernels/cuda/plan.h", "kernels/cuda/images.h", "kernels/cuda/paged-plan.h",
              "kernels/cuda/paged-images.h", "daemon/pool/",
              "daemon/backend/device.h"],
    # times kernels with the GPU that the kernels' tests use, or with the emulator in its place
    "bench/kernels": ["kernels/paged.h", "kernels/quantise.h", "tests/gpu/paged-gpu.h", "tests/gpu/request.h",
                      "tests/kernels/reference.h", "daemon/backend/vulkan/"],
}

# The folders of the daemon, from top to bottom: each may include only those below it.
DAEMON = ["service", "requests", "kv", "session", "engine", "memory", "backend/cpu",
          "backend/cuda", "backend/vulkan", "backend", "account", "supervise", "persist", "pool", "base"]
# The backends do not know one another.
APART = [{"backend/cpu", "backend/cuda"}, {"backend/cpu", "backend/vulkan"},
         {"backend/cuda", "backend/vulkan"}]

# Files that include one another in a circle, where x.c and x.h count as one file (x.cu does not: it
# has kernels, which no file calls). The folder's README.md says why. The product has no other circles.
CIRCLES = [
    ("client", "faclient faclient_kv faclient_timeline"),
    ("daemon/account", "fd_reaper tenant"),
    ("daemon/engine", "engine private"),
    ("daemon/kv", "growth persist quota store"),
    ("daemon/kv", "step step_prepare"),
    ("daemon/memory", "buffer importer"),
    ("daemon/service", "accept dispatch drain hold server status status_kv status_reply"),
    ("daemon/session", "completions context device_completion outbox peer_watch pinned_page request "
                       "session submission_ring timeline turns"),
    ("kernels/cuda", "paged-plan paged-plan-private"),
    ("schema", "decode encode fast_path mirror wire"),
]
PRODUCT = ("client/", "common/", "daemon/", "demo/", "kernels/", "schema/", "tools/")

# Foreign headers that are kept in: pattern, files or folders that may include them.
FOREIGN = [
    (r"uv\.h|uv/.*", ["daemon/", "tests/"]),
    (r"systemd/.*", ["daemon/base/service_manager_systemd.c"]),
    (r"flatbuffers/.*|.*_generated\.h", ["schema/wire.cc"]),
    (r"ini\.h", ["daemon/account/config_file.c"]),
    (r"sodium.*\.h", ["daemon/pool/hash.c"]),
    (r"cuda.*\.h", ["kernels/cuda/", "client/examples/cuda.c", "tests/"]),
    (r"vulkan/.*", ["daemon/backend/vulkan/", "tests/vulkan/"]),
    (r"microhttpd\.h", ["tools/exporter/exporter.c"]),
    (r"cmocka\.h", ["tests/"]),
]

SUFFIXES = (".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".S")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def project_folders(root):
    return {name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name))}


def violations(path, text, folders):
    """Yields a sentence for every include in @text, the content of @path, that breaks a rule."""
    folder = path.split("/")[0]
    # a layer is a folder, or the files of one whose names begin so
    layer = max((name for name in LAYERS if path.startswith(name + "/")
                 or "/" in name and path.startswith(name)), key=len, default=folder)
    if path.endswith((".cc", ".cpp")) and path != "schema/wire.cc":
        yield f"{path} is C++; expected only schema/wire.cc"
    for quote, name in INCLUDE.findall(text):
        for pattern, allowed in FOREIGN:
            if re.fullmatch(pattern, name) and not path.startswith(tuple(allowed)):
                yield f"{path} includes {name}; expected only in {', '.join(allowed)}"
        if layer not in LAYERS:
            continue
        # generated headers lie beside their includer and are named without a folder
        local = "/" not in name and quote == '"'
        ours = name.split("/")[0] in folders and "/" in name
        if local or not ours or name.split("/")[0] == folder:
            continue
        if not name.startswith(tuple(LAYERS[layer])):
            allowed = ", ".join(LAYERS[layer]) or "nothing"
            yield f"{path} includes {name}; {layer} may include {allowed} besides itself"


def floor(path):
    """The folder of the daemon that @path lies in, as its place in DAEMON; None outside."""
    inside = os.path.dirname(path).partition("daemon/")[2]
    return DAEMON.index(inside) if path.startswith("daemon/") and inside in DAEMON else None


def climbs(path, text):
    """Yields a sentence for every include in @text that goes up inside the daemon."""
    if not path.startswith("daemon/"):
        return
    here = floor(path)
    if here is None:
        yield f"{path} lies in no known folder of the daemon; expected one of {', '.join(DAEMON)}"
        return
    for _, name in INCLUDE.findall(text):
        there = floor(name)
        if there is None:
            if name.startswith("daemon/"):
                yield f"{path} includes {name}, which lies in no known folder of the daemon"
        elif there < here:
            yield f"{path} includes {name}, which lies above it; {DAEMON[here]} may include " \
                  f"{', '.join(DAEMON[here + 1:]) or 'nothing'} besides itself"
        elif {DAEMON[here], DAEMON[there]} in APART:
            yield f"{path} includes {name}; the two are to stay apart"


def circles(texts):
    """The circles of includes in @texts, {path: content}: sets of paths without suffix."""
    includes = {}
    for path, text in texts.items():
        stem = path if path.endswith(".cu") else os.path.splitext(path)[0]
        there = includes.setdefault(stem, set())
        for _, name in INCLUDE.findall(text):
            other = os.path.splitext(name)[0]
            there |= {other, os.path.join(os.path.dirname(path), other)} - {stem}
    reach = {stem: others & includes.keys() for stem, others in includes.items()}
    grows = True
    while grows:
        grows = False
        for stem, others in reach.items():
            more = others.union(*(reach[other] for other in others))
            grows |= more != others
            reach[stem] = more
    found = {frozenset(other for other in others if stem in reach[other])
             for stem, others in reach.items() if stem in others}
    return sorted(found, key=sorted)


def new_circles(texts):
    """Yields a sentence for every circle that CIRCLES does not have."""
    known = [{f"{folder}/{name}" for name in names.split()} for folder, names in CIRCLES]
    for stems in circles(texts):
        if not any(stems <= allowed for allowed in known):
            yield f"{', '.join(sorted(stems))} include one another in a circle"


def check_the_check(folders):
    bad = {
        "common/x.c": '#include "schema/wire.h"',
        "schema/x.c": '#include "client/faclient.h"',
        "kernels/cpu/x.c": '#include "common/list.h"',
        "client/x.c": '# include "daemon/session/session.h"',
        "client/y.c": "#include <uv.h>",
        "daemon/kv/x.c": '#include "kernels/cpu/simd.h"',
        "daemon/kv/y.c": "#include <systemd/sd-daemon.h>",
        "daemon/kv/w.c": '#include "kernels/cuda/plan.h"',
        "daemon/kv/v.c": '#include "daemon/service/server.h"',
        "daemon/base/x.c": '#include "daemon/account/tenant.h"',
        "daemon/backend/x.c": '#include "daemon/backend/cuda/backend.h"',
        "daemon/backend/cuda/z.c": '#include "daemon/backend/cpu/backend.h"',
        "daemon/x.c": "#include <stdint.h>",
        "daemon/backend/cuda/x.c": '#include "kernels/cuda/common/tile.h"',
        "daemon/backend/cuda/y.c": "#include <cuda.h>",
        "daemon/kv/z.c": '#include "schema/fad_generated.h"',
        "daemon/kv/x.cc": "",
        "tools/x.c": "#include <flatbuffers/flatbuffers.h>",
        "tools/y.c": '#include "bench/lib/inproc-gpu.h"',
        "bench/lib/x.c": '#include "tests/gpu/gpu.h"',
        "bench/kernels/x.c": '#include "client/faclient.h"',
    }
    good = {
        "common/x.c": '#include "common/list.h"\n#include <stdint.h>\n#include <sys/socket.h>',
        "client/x.c": '#include "client/y.h"\n#include "schema/wire.h"\n#include "common/packet.h"',
        "daemon/service/main.c": "#include <uv.h>",
        "daemon/base/service_manager_systemd.c": "#include <systemd/sd-daemon.h>",
        "daemon/kv/x.c": '#include "kernels/attention.h"\n#include "daemon/pool/pool.h"',
        "daemon/backend/cuda/x.c": '#include "kernels/cuda/plan.h"\n#include "daemon/backend/device.h"',
        "schema/wire.cc": '#include "schema/fad_generated.h"\n#include <cstring>',
    }
    for path, text in bad.items():
        if not found_in(path, text, folders):
            sys.exit(f"the check is broken: it lets pass {path} with {text}")
    for path, text in good.items():
        if found := found_in(path, text, folders):
            sys.exit(f"the check is broken: {found[0]}")
    chain = {"client/x.c": '#include "client/x.h"\n#include "client/y.h"',
             "client/x.h": "", "client/y.h": ""}
    if found := list(new_circles(chain)):
        sys.exit(f"the check is broken: it says that {found[0]}")
    for wrong in ({"client/y.c": '#include "client/x.h"'}, {"client/y.h": '#include "x.h"'}):
        if circles(chain | wrong) != [{"client/x", "client/y"}] or not list(new_circles(chain | wrong)):
            sys.exit("the check is broken: it lets pass a circle of includes")


def found_in(path, text, folders):
    return list(violations(path, text, folders)) + list(climbs(path, text))


def sources(root):
    for folder, subfolders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        # build directories hold generated code
        subfolders[:] = [
            name for name in subfolders
            if not name.startswith(".")
            and not (inside == "." and (name == "build" or name.startswith("build-")))
            and not os.path.exists(os.path.join(folder, name, "build.ninja"))
        ]
        for name in names:
            if name.endswith(SUFFIXES):
                yield os.path.normpath(os.path.join(inside, name))


def main():
    root = sys.argv[1]
    folders = project_folders(root) | set(LAYERS)
    check_the_check(folders)
    n_files = 0
    found = []
    texts = {}
    for path in sorted(sources(root)):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        found += found_in(path, text, folders)
        if path.startswith(PRODUCT):
            texts[path] = text
        n_files += 1
    found += new_circles(texts)
    for folder in sorted({folder for folder, _ in CIRCLES}):
        with open(os.path.join(root, folder, "README.md"), encoding="utf-8") as file:
            if "circle" not in file.read().lower():
                found.append(f"{folder}/README.md does not explain the folder's circles of includes")
    for sentence in found:
        print(sentence)
    print(f"{n_files} files, {len(found)} wrong includes")
    return 1 if found or n_files < 10 else 0


if __name__ == "__main__":
    sys.exit(main())

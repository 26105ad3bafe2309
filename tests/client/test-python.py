#!/usr/bin/env python3
"""
client/examples/attention.py: its copies of the headers' structs match, it computes with a spawned
and a running daemon, and reports a missing daemon or library, and wrong results.

    test-python.py ATTENTION.PY LIBRARY LAYOUT SANITIZE HEADER..., with FAD_DAEMON set
"""
import ctypes
import errno
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

SCALARS = {"void": None, "int": ctypes.c_int, "uint32_t": ctypes.c_uint32,
           "int32_t": ctypes.c_int32,
           "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "float": ctypes.c_float,
           "double": ctypes.c_double}


def load(path):
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python_name(struct):
    """The name of the Python class for a struct: StepItem for fa_step_item."""
    return "".join(word.capitalize() for word in struct.split("_")[1:])


def python_type(example, text):
    """The ctypes type for a C type in the text of a header."""
    base = text.replace("const ", "").replace("*", "").strip()
    stars = text.count("*")
    if base == "char" and stars == 1:
        return ctypes.c_char_p
    if base.startswith("struct "):
        type_ = getattr(example, python_name(base.removeprefix("struct ")), None)
        if not type_:
            type_, stars = ctypes.c_void_p, stars - 1
    elif base == "void" and stars:
        type_, stars = ctypes.c_void_p, stars - 1
    else:
        type_ = SCALARS[base]
    for _ in range(stars):
        type_ = ctypes.POINTER(type_)
    return type_


def check_layout(example, program):
    constants, structs, fields = {}, {}, {}
    done = subprocess.run([program], stdout=subprocess.PIPE, check=True, text=True)
    for line in done.stdout.splitlines():
        what, name, rest = line.split(maxsplit=2)
        if what == "constant":
            constants[name] = int(rest)
        elif what == "struct":
            struct = python_name(name)
            structs[struct], fields[struct] = int(rest), {}
        else:
            fields[struct][name] = rest.split(maxsplit=2)

    found = {name: value for name, value in vars(example).items() if name.startswith("FA_")}
    assert found == constants, f"{found}, in C {constants}"
    found = {name: ctypes.sizeof(type_) for name, type_ in vars(example).items()
             if isinstance(type_, type) and issubclass(type_, ctypes.Structure)
             and name != "Sized"}
    assert found == structs, f"{found}, in C {structs}"
    for struct, size in structs.items():
        type_ = getattr(example, struct)
        assert [name for name, _ in type_._fields_] == list(fields[struct]), struct
        for name, of_type in type_._fields_:
            *place, text = fields[struct][name]
            found = [str(getattr(type_, name).offset), str(getattr(type_, name).size)]
            assert found == place, f"{struct}.{name} {found}: {place}"
            if text.endswith("[]"):
                text, of_type = text.removesuffix("[]"), of_type._type_
            assert of_type is python_type(example, text), f"{struct}.{name} {of_type}: {text}"
        # No field is missing: these structs have no padding.
        assert sum(int(field[1]) for field in fields[struct].values()) == size, struct


def check_functions(example, headers):
    declared = {}
    for header in headers:
        with open(header, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
        for result, name, arguments in re.findall(r"^([a-z][\w ]*[ *])(fa_\w+)\(([^()]*)\);", text,
                                                  re.MULTILINE):
            arguments = " ".join(arguments.split())
            types = [] if arguments == "void" else [re.sub(r"\w+$", "", argument)
                                                    for argument in arguments.split(",")]
            declared[name] = (result, types)
    assert len(declared) > 50, declared
    for name, (result, arguments) in example.FUNCTIONS.items():
        wanted = (python_type(example, declared[name][0]),
                  [python_type(example, text) for text in declared[name][1]])
        assert (result, arguments) == wanted, f"{name}: {result} {arguments}, not {wanted}"


def check_distance(example):
    """Wrong results are noticed."""
    right = [[[0.5, 0.25]], [[0.125, -1.0]]]
    assert example.distance(right, right) == 0
    for wrong, distance in ((0.0, 1.0), (float("nan"), float("inf")), (-1.5, 0.5)):
        found = example.distance([[[0.5, 0.25]], [[0.125, wrong]]], right)
        assert found == distance, f"{wrong}: {found}"


def check_exception(example, library):
    lib = example.load(library)
    client = ctypes.c_void_p()
    try:
        lib.fa_connect(ctypes.byref(example.Options(flags=1 << 31)), ctypes.byref(client))
    except OSError as error:
        assert error.errno == errno.EINVAL and "fa_options.flags" in error.strerror, error
    else:
        raise AssertionError("a flag that does not exist is taken")


def run(path, **environment):
    done = subprocess.run([sys.executable, "-B", path], capture_output=True, text=True, timeout=100,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def expect_numbers(path, **environment):
    status, out, err = run(path, **environment)
    assert (status, err) == (0, ""), f"{status}: {err}"
    assert re.fullmatch(r"libfaclient \S+: .* by 0\.00\d+ at most, .* by 0\.00\d+\n", out), out


def expect_failure(path, sentence, **environment):
    status, out, err = run(path, **environment)
    assert (status, out, err.count("\n")) == (1, "", 1), f"{status}: {out}{err}"
    assert sentence in err, err


def connects(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(path) == 0


def check_runs(path, library, temporary):
    nowhere = os.path.join(temporary, "nothing")
    os.environ["XDG_RUNTIME_DIR"] = temporary
    os.environ.pop("FAD_SOCKET", None)
    os.environ["FACLIENT_LIBRARY"] = library

    expect_numbers(path)
    expect_failure(path, "there is no such socket", FAD_SOCKET=nowhere)
    expect_failure(path, "cannot start a daemon", FAD_DAEMON=nowhere)
    expect_failure(path, "FACLIENT_LIBRARY may name", FACLIENT_LIBRARY=nowhere)
    expect_failure(path, "is not libfaclient", FACLIENT_LIBRARY="libc.so.6")

    # Run the example with a running daemon; it finds the library by its name.
    place = os.path.join(temporary, "fad.sock")
    daemon = subprocess.Popen([os.environ["FAD_DAEMON"], "--config", "/dev/null",
                               "--socket", place], stderr=subprocess.DEVNULL)
    try:
        while not connects(place):
            assert daemon.poll() is None, "the daemon has ended"
            time.sleep(0.01)
        paths = [os.path.dirname(library), os.environ.get("LD_LIBRARY_PATH", "")]
        expect_numbers(path, FAD_SOCKET=place, FAD_DAEMON=nowhere, FACLIENT_LIBRARY="",
                       LD_LIBRARY_PATH=":".join(filter(None, paths)))
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0, "the daemon does not end in order"


def main():
    path, library, layout, sanitize, *headers = sys.argv[1:]
    example = load(path)
    check_layout(example, layout)
    check_functions(example, headers)
    check_distance(example)
    if sanitize != "none":
        print("a library with a sanitizer cannot be loaded by others")
        sys.exit(77)
    check_exception(example, library)
    with tempfile.TemporaryDirectory(prefix="fad-python-") as temporary:
        check_runs(path, library, temporary)


if __name__ == "__main__":
    main()

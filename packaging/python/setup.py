"""For packages of distributions: the Python package against the installed library, by setuptools.
python/pyproject.toml, which pip uses, puts library and daemon into the package instead. Copied into
python/, beside the _faclient.c that python/build_ffi.py has written."""
from setuptools import Extension, setup

setup(
    packages=["faclient"],
    package_dir={"": "src"},
    package_data={"faclient": ["py.typed"]},
    ext_modules=[Extension("faclient._faclient", ["_faclient.c"], libraries=["faclient"],
                           define_macros=[("Py_LIMITED_API", "0x03090000")],
                           py_limited_api=True)])

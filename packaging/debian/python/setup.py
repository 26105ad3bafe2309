"""What python/pyproject.toml leaves to meson: the extension module, here against the library that
is installed. debian/rules copies this file beside it, and makes _faclient.c."""
from setuptools import Extension, setup

setup(
    packages=["faclient"],
    package_dir={"": "src"},
    package_data={"faclient": ["py.typed"]},
    ext_modules=[Extension("faclient._faclient", ["_faclient.c"], libraries=["faclient"],
                           define_macros=[("Py_LIMITED_API", "0x03090000")],
                           py_limited_api=True)])

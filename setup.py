"""Builds what is not written in Python: the modules of proto/, and the decode kernel of the Spark source.

The modules of proto/ are not committed: the `.proto` files are their only source.  The kernel is optional:
without a C compiler the package is built without it, and the decoder written in Python takes its place.
Everything else about the build stands in pyproject.toml.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
HAS_STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")  # the kernel is not for free-threaded builds
KERNEL = Extension(
    "tidegate.spark.decoding.kernel",
    ["spark/decoding/kernel.c"],
    extra_compile_args=["-O3", "-Wall", "-Wextra"],
    py_limited_api=HAS_STABLE_ABI,
    optional=True,
)


class BuildWithProtocols(build_py):
    """`build_py` that first turns every proto/*.proto into modules and type stubs of `tidegate.proto`."""

    def run(self) -> None:
        from grpc_tools import protoc

        out = ROOT / "build" / "wire"
        out.mkdir(parents=True, exist_ok=True)
        flags = [f"--{kind}_out={out}" for kind in ("python", "grpc_python")]
        flags += [f"--{kind}_out=quiet:{out}" for kind in ("mypy", "mypy_grpc")]
        names = sorted(path.name for path in (ROOT / "proto").glob("*.proto"))
        sources = [f"tidegate/proto/{name}" for name in names]
        if protoc.main(["protoc", f"-Itidegate/proto={ROOT / 'proto'}", *flags, *sources]):
            raise SystemExit("protoc failed: see the message above")
        for made in sorted((out / "tidegate" / "proto").iterdir()):
            made.replace(ROOT / "proto" / made.name)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Leaves out what only lies in the root package's folder: this build script, and the module that is
        top-level itself."""
        strangers = (("tidegate", "setup"), ("tidegate", "pyspark_tidegate"))
        return [
            module
            for module in super().find_package_modules(package, package_dir)
            if module[:2] not in strangers
        ]


setup(
    cmdclass={"build_py": BuildWithProtocols},
    ext_modules=[KERNEL],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
)

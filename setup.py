# SPDX-License-Identifier: Apache-2.0
"""Adds what is compiled to the package that pyproject.toml describes: the modules, and libmrc for C
programs. A source archive of tools/wheel also has files in wheel-data/: manual pages, shell
completion and a systemd unit.
"""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DATA = Path("wheel-data")
FOLDER = "mrc.lib."
LIBMRC = FOLDER + "libmrc"
OWN = ("csrc/program/", "csrc/verbs/", "csrc/ofi/")  # sources that no module compiles
LINKER_NAMES = ("libmrc.so", "lib_mrc.so")  # lib_mrc.so: of the makefiles that OCP published
LOADED_NAME = "libibverbs.so"  # of programs that open RDMA's library at run time


LIBRARIES = runpy.run_path("mrc/_ffi_build.py")["libraries"]()
PATHS = {FOLDER + name.partition(".")[0]: Path("mrc", "lib", name) for name in LIBRARIES}


class Build(build_ext):
    """Builds the libraries too, from the engine's object files, which the modules have made."""

    def get_ext_filename(self, fullname: str) -> str:
        for name, path in PATHS.items():
            if fullname == name:
                return str(path)
            if fullname == name.rpartition(".")[2]:  # setuptools asks for both
                return path.name
        return super().get_ext_filename(fullname)

    def build_extensions(self) -> None:
        self.extensions.sort(key=lambda each: each.name in PATHS)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        if ext.name in PATHS:
            ext.depends += ext.sources
            made = {each: Path(self.build_temp, each).with_suffix(".o") for each in ext.sources}
            found = {
                each: path
                for each, path in made.items()
                if path.exists() and not each.startswith(OWN)
            }
            ext.extra_objects = [str(path) for path in found.values()]
            ext.sources = [each for each in ext.sources if each not in found]
        super().build_extension(ext)
        if ext.name == LIBMRC:
            self.add_names(Path(self.get_ext_fullpath(ext.name)))

    def copy_extensions_to_source(self) -> None:
        Path("mrc", "lib").mkdir(exist_ok=True)
        super().copy_extensions_to_source()
        if LIBMRC in PATHS:
            self.add_names(PATHS[LIBMRC])

    def add_names(self, library: Path) -> None:
        """The other names of libmrc. They are no copies: a process would have two libraries."""
        for name in LINKER_NAMES:
            library.with_name(name).write_text(f"INPUT({library.name})\n")
        self.compiler.link_shared_object(
            [], str(library.with_name(LOADED_NAME)),
            extra_preargs=["-nostartfiles", "-Wl,--no-as-needed", str(library)],
            extra_postargs=["-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{LOADED_NAME}"],
        )  # fmt: skip


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[Extension(name, **LIBRARIES[path.name]) for name, path in PATHS.items()],
    cffi_modules=[
        "mrc/_ffi_build.py:builder",
        "mrc/_ffi_build.py:sim_builder",
        "mrc/_ffi_build.py:emu_builder",
    ],
    data_files=[
        (str(path.parent.relative_to(DATA)), [str(path)])
        for path in sorted(DATA.rglob("*"))
        if path.is_file()
    ],
)

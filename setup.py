# SPDX-License-Identifier: Apache-2.0
"""Adds what is compiled to the package that pyproject.toml describes: the modules, and libmrc for C
programs. A source archive of tools/wheel also has files in wheel-data/: manual pages, shell
completion and a systemd unit.
"""

import os
import runpy
import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError

DATA = Path("wheel-data")
FOLDER = "mrc.lib."
LIBMRC = FOLDER + "libmrc"
LIBMRC_CM = FOLDER + "libmrc-cm"  # linked with libmrc
LINKER_NAMES = ("libmrc.so", "lib_mrc.so")  # lib_mrc.so: of the makefiles that OCP published
LOADED_NAME = "libibverbs.so"  # of programs that open RDMA's library at run time

INSIST = os.environ.get("MRC_WERROR") == "1"  # every library must build

LIBRARIES = runpy.run_path("mrc/_ffi_build.py")["libraries"]()
PATHS = {FOLDER + name.partition(".")[0]: Path("mrc", "lib", name) for name in LIBRARIES}


class Build(build_ext):
    """Compiles each source once, on all cores. A library for C programs that fails costs only
    itself: a file NAME.error in its place has the compiler's first error, for `mrc doctor`.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True  # flags depend on what is installed: an older object may have others
        self.parallel = True

    def get_ext_filename(self, fullname: str) -> str:
        for name, path in PATHS.items():
            if fullname == name:
                return str(path)
            if fullname == name.rpartition(".")[2]:  # setuptools asks for both
                return path.name
        # Python 3.15 writes .abi3-x86_64-linux-gnu.so, which older ones do not look for.
        start, abi3, _ = super().get_ext_filename(fullname).partition(".abi3")
        return f"{start}{abi3}.so" if abi3 else start

    def build_extensions(self) -> None:
        shutil.rmtree(Path(self.build_lib, "mrc", "lib"), ignore_errors=True)
        self.objects: dict[str, Future[str]] = {}
        self.libmrc: Future[str] = Future()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for ext in self.extensions:
                for source in [each for each in ext.sources if each not in self.objects]:
                    self.objects[source] = pool.submit(self.compile, source, ext)
            super().build_extensions()

    def compile(self, source: str, ext: Extension) -> str:
        """Returns the object file. All extensions have the same flags."""
        made = Path(self.build_temp, source).with_suffix(".o")
        made.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *(*self.compiler.compiler_so, "-c", source, "-o", str(made)),
            *(f"-I{folder}" for folder in (*ext.include_dirs, *self.include_dirs)),
            *(f"-D{name}={value}" for name, value in ext.define_macros),
            *ext.extra_compile_args,
        ]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
        print(f"compiled {source}\n{done.stderr}", end="", flush=True)
        if done.returncode != 0:
            lines = done.stderr.splitlines() or [f"{source}: no message"]
            raise CompileError(next((each for each in lines if "error:" in each), lines[0]))
        return str(made)

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        try:
            ext.extra_objects = [self.objects[source].result() for source in sorted(ext.sources)]
            ext.sources = []
            if ext.name == LIBMRC_CM:
                ext.extra_objects.append(self.libmrc.result())
                ext.extra_link_args.append("-Wl,-rpath,$ORIGIN")
            super().build_extension(ext)
        except CCompilerError as error:
            if ext.name == LIBMRC:
                self.libmrc.set_exception(error)
            if ext.optional:
                library.parent.mkdir(parents=True, exist_ok=True)
                library.with_name(f"{library.name}.error").write_text(f"{error}\n")
            raise
        if ext.name == LIBMRC:
            self.libmrc.set_result(str(library))
            self.add_names(library)

    def copy_extensions_to_source(self) -> None:
        made, folder = Path(self.build_lib, "mrc", "lib"), Path("mrc", "lib")
        shutil.rmtree(folder, ignore_errors=True)  # a program may have the old ones open
        folder.mkdir()
        super().copy_extensions_to_source()
        if made.exists():
            shutil.copytree(made, folder, dirs_exist_ok=True)

    def add_names(self, library: Path) -> None:
        """The other names of libmrc. They are no copies: a process would have two libraries."""
        for name in LINKER_NAMES:
            library.with_name(name).write_text(f"INPUT({library.name})\n")
        self.compiler.link_shared_object(
            [], str(library.with_name(LOADED_NAME)),
            extra_preargs=["-nostartfiles", "-Wl,--no-as-needed", str(library)],
            extra_postargs=[
                "-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{LOADED_NAME}",
                "-Wl,-z,noexecstack",  # else glibc 2.41 refuses it, because no object says so
            ],
        )  # fmt: skip


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(name, **LIBRARIES[path.name], optional=not INSIST) for name, path in PATHS.items()
    ],
    cffi_modules=[
        f"mrc/_ffi_build.py:{builder}"
        for builder, folder in (("builder", "io"), ("sim_builder", "sim"), ("emu_builder", "sim"))
        if Path("csrc", folder).is_dir()  # a tree may be without test beds: tools/without
    ],
    data_files=[
        (str(path.parent.relative_to(DATA)), [str(path)])
        for path in sorted(DATA.rglob("*"))
        if path.is_file()
    ],
)

"""Compiles the protos while the package is built; pyproject.toml has everything else."""

import pathlib
import shutil
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compile_protos  # noqa: E402


class BuildWithProtos(build_py):
    def run(self):
        super().run()
        compile_protos.write(compile_protos.SOURCES if self.editable_mode else pathlib.Path(self.build_lib))


class SourcesWithProtos(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for proto in compile_protos.PROTOS:
            target = pathlib.Path(base_dir, "proto", proto)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(compile_protos.root_of_protos() / proto, target)


setup(cmdclass={"build_py": BuildWithProtos, "sdist": SourcesWithProtos})

"""A container image holds more than Debian's libraries: modules, and libraries of wheels with their licences."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

COLLECT = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "collect-runtime.sh"


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("dpkg-query"), "needs root and Debian")
class CollectRuntimeTest(unittest.TestCase):
    """A program, a module that needs libwheel.so.1, and the wheel that this library comes with."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root, self.site = self.folder / "root", self.folder / "site"
        self.library = self.site / "vendor" / "lib" / "libwheel.so.1"
        self.about = self.site / "some_wheel-1.0.dist-info"
        self.library.parent.mkdir(parents=True)
        (self.about / "licenses").mkdir(parents=True)
        (self.about / "METADATA").write_text("Name: some-wheel\n")
        (self.about / "RECORD").write_text("vendor/lib/libwheel.so.1,sha256=x,1\n")
        (self.about / "licenses" / "License.txt").write_text("terms\n")
        self.compile(self.library, "int wheel(void) { return 1; }", "-shared", "-Wl,-soname,libwheel.so.1")
        self.compile(self.folder / "libmodule.so", "int wheel(void); int module(void) { return wheel(); }", "-shared",
                     self.library, "-Wl,-rpath,$ORIGIN")
        self.compile(self.folder / "program", "int main(void) { return 0; }")

    def compile(self, to, source, *flags):
        subprocess.run(["cc", "-fPIC", "-x", "c", "-o", to, "-", "-x", "none", *flags], input=source, text=True,
                       check=True, timeout=60)

    def collect(self, library_path):
        return subprocess.run([COLLECT, self.root, self.folder / "program", self.folder / "libmodule.so"],
                              env={**os.environ, "LD_LIBRARY_PATH": str(library_path)}, capture_output=True, text=True,
                              timeout=120, check=False)

    def fails(self, words, library_path):
        run = self.collect(library_path)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(words, run.stderr)

    def test_a_wheels_library_lies_beside_the_module_that_finds_it(self):
        run = self.collect(self.library.parent)
        self.assertEqual(run.returncode, 0, run.stderr)
        placed = self.root / "usr/local/lib/edgewise"
        self.assertEqual({path.name for path in placed.iterdir()}, {"libmodule.so", "libwheel.so.1"})
        self.assertEqual((placed / "libwheel.so.1").read_bytes(), self.library.read_bytes(), "not stripped")
        loaded = subprocess.run(["chroot", self.root, "/lib64/ld-linux-x86-64.so.2", "--list",
                                 "/usr/local/lib/edgewise/libmodule.so"], capture_output=True, text=True, timeout=60,
                                check=True).stdout
        self.assertIn("libwheel.so.1 => /usr/local/lib/edgewise/libwheel.so.1", loaded)
        self.assertNotIn("not found", loaded)
        self.assertEqual(subprocess.run(["chroot", self.root, "/usr/local/bin/program"], check=False).returncode, 0)

    def test_where_everything_comes_from_is_recorded_with_its_licence(self):
        self.assertEqual(self.collect(self.library.parent).returncode, 0)
        documents = self.root / "usr/share/doc"
        self.assertEqual({path.name: path.read_text() for path in (documents / self.about.name).iterdir()},
                         {"METADATA": "Name: some-wheel\n", "License.txt": "terms\n"})
        packages = {path.name for path in (self.root / "var/lib/dpkg/status.d").iterdir()}
        self.assertIn("libc6", packages)
        for package in packages:
            self.assertGreater((documents / package / "copyright").stat().st_size, 0, package)

    def test_a_wheel_without_a_licence_is_refused(self):
        (self.about / "licenses" / "License.txt").unlink()
        self.fails("no licence in", self.library.parent)

    def test_a_library_that_nobody_owns_is_refused(self):
        (self.about / "RECORD").write_text("another/lib/libwheel.so.1,sha256=x,1\n")
        self.fails(f"neither a package nor a wheel owns {self.library}", self.library.parent)

    def test_a_library_that_is_not_there_is_refused(self):
        self.fails("libwheel.so.1 => not found", self.folder)


if __name__ == "__main__":
    unittest.main()

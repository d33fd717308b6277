"""The counts of bench/gpu/sass.py in machine code that was counted by hand."""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench/gpu/sass.py"
SPEC = importlib.util.spec_from_file_location("sass", SCRIPT)
sass = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sass)

# A loop (10 to b0) with a rare way (50, 60), a loop inside (80, 90) and, behind the end, the way of threads that parted.
CODE = """
\t\tFunction : kernel
        /*0000*/                   MOV R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */
        /*0010*/                   LDG.E.128 R4, [R2] ;
        /*0020*/                   BRA.DIV UR4, 0xd0 ;
        /*0030*/                   SHFL.BFLY PT, R5, R4, 0x1, 0x1f ;
        /*0040*/              @!P0 BRA 0x70 ;
        /*0050*/                   FMUL R6, R6, R5 ;
        /*0060*/                   FMUL R7, R7, R5 ;
        /*0070*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0080*/                   IADD3 R9, R9, 0x1, RZ ;
        /*0090*/               @P1 BRA 0x80 ;
        /*00a0*/                   STG.E [R2], R9 ;
        /*00b0*/               @P2 BRA 0x10 ;
        /*00c0*/                   EXIT ;
        /*00d0*/                   WARPSYNC R1 ;
        /*00e0*/                   BRA 0x40 ;
"""


class SassTest(unittest.TestCase):
    def setUp(self):
        (code,) = sass.functions(CODE).values()
        self.outer, self.inner = sass.Kernel(code).loops

    def test_a_loop_has_neither_the_loops_inside_nor_the_way_of_threads_that_parted(self):
        self.assertEqual(len(self.outer.all()), 9)
        self.assertEqual(self.inner.all(), ["IADD3", "BRA"])
        self.assertIs(self.inner.parent, self.outer)

    def test_the_least_way_round_leaves_out_what_it_can_but_no_work(self):
        way, loops = self.outer.least(("HMMA", "LDG", "STG"))
        self.assertEqual(way, ["LDG.E.128", "BRA.DIV", "SHFL.BFLY", "BRA", "HMMA.16816.F32.BF16", "STG.E", "BRA"])
        self.assertEqual(loops, [self.inner])
        self.assertEqual(len(self.outer.least(("HMMA", "FMUL"))[0]), 9)

    def test_classes_are_of_operations(self):
        classes = sass.Count("", self.outer.all()).classes
        self.assertEqual(classes, {"loads": 1, "stores": 1, "shuffles": 1, "mma": 1, "float": 2, "other": 3})

    def test_loads_before_the_wait_are_those_of_16_bytes(self):
        lines = ["LDG.E R2, [R2]", "@P0 LDG.E.128.CONSTANT R4, [R2]", "ACQBULK", "LDG.E.128 R8, [R2]"]
        code = list(enumerate(lines))
        self.assertEqual(sass.loads_before_wait(code), 1)
        self.assertIsNone(sass.loads_before_wait(code[:2]))

    def test_without_tools_it_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, SCRIPT, "--tools", folder], capture_output=True, text=True)
            self.assertIn("no cuobjdump", done.stderr)
            self.assertNotEqual(done.returncode, 0)
            (pathlib.Path(folder) / "cuobjdump").touch()
            command = [sys.executable, SCRIPT, "--tools", folder, "--tiles"]
            done = subprocess.run(command, capture_output=True, text=True, env={"PATH": folder})
            self.assertIn("there is no nvcc", done.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Compiling: equal bytes every time, resumable at every phase and after a kill, and a dry run that writes nothing."""
import filecmp
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, main  # noqa: E402

POLICY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "policies", "exact.yaml")
PHASES = ["imported", "placed", "transferred", "optimised", "tiled", "lowered"]


def ktc(*arguments):
    done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy", POLICY, *arguments],
                          capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class Compile(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def assert_equal_plans(self, a, b):
        names = sorted(os.listdir(a))
        self.assertEqual(names, sorted(os.listdir(b)))
        self.assertIn("plan.ktp", names)
        self.assertFalse([n for n in names if n.endswith((".journal", ".tmp"))])
        _, mismatch, errors = filecmp.cmpfiles(a, b, names, shallow=False)
        self.assertEqual((mismatch, errors), ([], []))

    def test_twice_gives_equal_bytes(self):
        ktc("-o", self.path("a.ktp"), "--threads", "1")
        self.assert_equal_plans(self.path("a.ktp"), Setting.plan)

    def test_every_phase_stops_and_resumes(self):
        whole = ktc("--stop-after", "lowered")
        for phase in PHASES:
            with self.subTest(phase=phase):
                ktc("--stop-after", phase, "-o", self.path("ir.mlir"))
                with open(self.path("ir.mlir"), encoding="utf-8") as f:
                    text = f.read()
                self.assertIn(f"#kt.phase<{phase}>", text)
                self.assertNotIn(os.path.abspath(Setting.model), text, "the IR does not depend on where things lie")
                self.assertEqual(ktc("--start-from", self.path("ir.mlir"), "--stop-after", "lowered"), whole)
        ktc("--start-from", self.path("ir.mlir"), "-o", self.path("resumed.ktp"))
        self.assert_equal_plans(self.path("resumed.ktp"), Setting.plan)

    def test_a_killed_compile_resumes(self):
        output = self.path("killed.ktp")
        command = [os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy", POLICY, "-o", output]
        for delay in (0.02, 0.05, 0.1, 0.2):
            running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(delay)
            running.send_signal(signal.SIGKILL)
            running.wait()
            if os.path.exists(os.path.join(output, "plan.ktp")):  # comes last: whoever was killed behind it had done all
                self.assert_equal_plans(output, Setting.plan)
        ktc("-o", output)
        self.assert_equal_plans(output, Setting.plan)

    def test_dry_run_writes_nothing_and_tells_the_truth(self):
        text = ktc("--dry-run")
        self.assertEqual(os.listdir(self.folder), [])
        sizes = subprocess.run([os.path.join(Setting.bin, "ktc-plan"), "sizes", Setting.plan], capture_output=True, text=True,
                               check=True).stdout
        total = next(line.split()[1] for line in text.splitlines() if line.strip().startswith("total"))
        self.assertIn(total, sizes.replace(",", ""))

    def test_weights_are_what_the_digests_say(self):
        subprocess.run([os.path.join(Setting.bin, "ktc-plan"), "verify", "--weights", Setting.plan], check=True,
                       capture_output=True)
        copy = self.path("copy.ktp")
        shutil.copytree(Setting.plan, copy)
        with open(os.path.join(copy, "cpu.weights"), "r+b") as f:
            f.seek(12345)
            byte = f.read(1)
            f.seek(12345)
            f.write(bytes([byte[0] ^ 1]))
        done = subprocess.run([os.path.join(Setting.bin, "ktc-plan"), "verify", "--weights", copy], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cpu.weights", done.stderr)

    def test_no_llvm_in_the_runtime(self):
        for tool in ("ktc-run", "ktc-plan"):
            needed = subprocess.run(["ldd", os.path.join(Setting.bin, tool)], capture_output=True, text=True, check=True).stdout
            self.assertNotIn("LLVM", needed)
            self.assertNotIn("MLIR", needed)
            with open(os.path.join(Setting.bin, tool), "rb") as f:
                self.assertNotIn(b"mlir", f.read(), "nor linked statically")


if __name__ == "__main__":
    main(__doc__)

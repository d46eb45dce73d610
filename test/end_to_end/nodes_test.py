#!/usr/bin/env python3
"""Splitting workers and weights over NUMA nodes changes no bit: the same logits and ids for any number of nodes and workers.

The nodes are simulated: `ktc-run --nodes N` cuts whatever CPUs there are."""
import filecmp
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, ktc_run_json, main  # noqa: E402

POLICIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "policies")
SPLITS = [(2, 2), (2, 3), (2, 7), (3, 3), (3, 7), (2, 1)]  # nodes, workers


class Nodes(unittest.TestCase):
    def check(self, plan):
        reference = Setting.reference("reference.safetensors") + ":input_ids"
        prompt = Setting.reference_json()["greedy"][0]["prompt"]
        decode = ["--prompt", prompt, "--max-tokens", "32", "--ignore-eos", "--temperature", "0"]
        with tempfile.TemporaryDirectory() as folder:
            def run(nodes, workers):
                where = ["--nodes", str(nodes), "--threads", str(workers)]
                out = os.path.join(folder, f"{nodes}-{workers}.safetensors")
                ktc_run_json("--logits", out, "--ids", reference, *where, plan=plan)
                (found,) = ktc_run_json(*decode, *where, plan=plan)
                return out, found["ids"]

            logits, ids = run(1, 2)
            for nodes, workers in SPLITS:
                with self.subTest(nodes=nodes, workers=workers):
                    other, other_ids = run(nodes, workers)
                    self.assertTrue(filecmp.cmp(logits, other, shallow=False))
                    self.assertEqual(ids, other_ids)

    def test_exact(self):
        self.check(Setting.plan)

    def test_formats(self):
        for policy in ("cpu", "cpu-int8", "cpu-int4"):
            with self.subTest(policy=policy), tempfile.TemporaryDirectory() as folder:
                plan = os.path.join(folder, "model.ktp")
                subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy",
                                os.path.join(POLICIES, policy + ".yaml"), "-o", plan], check=True, capture_output=True, timeout=240)
                self.check(plan)

    def test_what_is_said(self):
        done = ktc_run("--bench", "8,2", "--repeat", "1", "--nodes", "2", "--threads", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 threads on 2 nodes, ", done.stderr)
        for value in ("0", "17", "two", ""):
            done = ktc_run("--bench", "8,2", "--nodes", value)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr, f"ktc-run: --nodes: found '{value}', expected auto or an integer from 1 to 16\n")


if __name__ == "__main__":
    main(__doc__)

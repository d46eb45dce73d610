#!/usr/bin/env python3
"""Every optimisation can be left out of a compile, and the plan answers the same: on the CPU alone, and with a GPU (the emulated
one), hot experts and late ones. Without deferral the answers are those of a policy that defers nothing."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, main  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement")
TARGET = os.path.join(ROOT, "targets", "emerald-rapids-16-cores-h200.yaml")
CPU = """version: 1
rules:
  - match: {class: "*"}
    place: {device: cpu, weights: native, activations: f32}
"""
HYBRID = """version: 1
rules:
  - match: {class: RoutedExperts}
    place: {device: cpu, weights: native, activations: f32}
  - match: {class: "*"}
    place: {device: "cuda:0", weights: native, activations: f32}
experts:
  on_gpu: 25%
  gpu: {devices: ["cuda:0"], weights: native, activations: f32}
"""
REST = """kv_cache: {dtype: f32, tokens: 2048, sequences: 8, page: 16}
batch: {decode: [1, 2, 4], chunk: 16, stream_chunk: 512, stream_from: 17}
"""
DEFER = "defer: {max_per_token: 3, phases: [prefill, decode], scope: all}\n"
PASSES = ["fold-weights", "form-cuda-graphs", "fuse", "halve-batches", "join-launches", "schedule", "split-experts", "stream-experts"]


class DisablePass(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.prompts = [case["prompt"] for case in Setting.reference_json()["greedy"][:3]]

    def ids(self, policy, *flags):
        path = os.path.join(self.folder.name, "p")
        with open(path + ".yaml", "w", encoding="utf-8") as f:
            f.write(policy)
        done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy", path + ".yaml", "--target",
                               TARGET, "-o", path + ".ktp", *flags], capture_output=True, text=True, check=False, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        emulate = ["--emulate-gpu"] if "cuda" in policy else []
        done = ktc_run(*[x for p in self.prompts for x in ("--prompt", p)], "--max-tokens", "24", "--ignore-eos",
                       "--temperature", "0", "--json", *emulate, plan=path + ".ktp")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
        self.assertEqual([len(ids) for ids in found], [24] * len(self.prompts))
        return found

    def check(self, policy):
        whole = self.ids(policy)
        for name in PASSES:
            with self.subTest(name=name):
                self.assertEqual(self.ids(policy, "--disable-pass", name), whole)
        return whole

    def test_on_the_cpu(self):
        late = self.check(CPU + DEFER + REST)
        plain = self.ids(CPU + REST)
        self.assertNotEqual(late, plain)  # or deferral would not be seen here
        self.assertEqual(self.ids(CPU + DEFER + REST, "--disable-pass", "kt-defer-experts"), plain)

    def test_with_a_gpu(self):
        late = self.check(HYBRID + DEFER + REST)
        self.assertEqual(late, self.ids(CPU + DEFER + REST))
        self.assertEqual(self.ids(HYBRID + DEFER + REST, "--disable-pass", "defer-experts"), self.ids(CPU + REST))


if __name__ == "__main__":
    main(__doc__)

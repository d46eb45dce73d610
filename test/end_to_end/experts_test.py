#!/usr/bin/env python3
"""--record-experts in every mode: the shape of the reference's activation counts, and files that add up."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, main  # noqa: E402
from safetensors_file import Tensor, read_tensors, write_tensors  # noqa: E402


def read(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


class RecordExperts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def record(self, name, *arguments):
        ktc_run(*arguments, "--record-experts", self.path(name))
        return read(self.path(name))

    def test_reference_counts(self):
        """The reference's counts are of 131072 other tokens of the same kind: equal shares, but for the sample."""
        expected = {key.split(".")[2]: counts for key, counts in Setting.reference_json()["activation_counts"].items()}
        found = self.record("eval.json", "--perplexity", Setting.reference("reference.safetensors") + ":eval_ids")
        self.assertEqual(found["tokens"], 64 * 512)
        self.assertEqual(sorted(found["layers"]), sorted(expected))
        for layer, counts in found["layers"].items():
            self.assertEqual(len(counts), len(expected[layer]))
            self.assertEqual(sum(counts), 8 * found["tokens"])
            scale = sum(counts) / sum(expected[layer])
            apart = sum(abs(c - scale * e) for c, e in zip(counts, expected[layer])) / sum(counts)
            self.assertLess(apart, 0.15, layer)
            even = sum(abs(c - sum(counts) / len(counts)) for c in counts) / sum(counts)
            self.assertGreater(even, 3 * apart, "far from what an even choice would give")

    def test_every_mode_and_adding_up(self):
        ids = read_tensors(Setting.reference("reference.safetensors"), ("eval_ids",))["eval_ids"].row(0)[:24]
        source = self.path("ids.safetensors")
        write_tensors(source, {"ids": Tensor("I32", [1, 24], ids)})
        logits = self.record("logits.json", "--logits", self.path("out.safetensors"), "--ids", source + ":ids")
        self.assertEqual(logits["tokens"], 24)
        generated = self.record("generate.json", "--prompt", "The Linux kernel", "--max-tokens", "6", "--ignore-eos")
        benched = self.record("bench.json", "--bench", "8,4", "--repeat", "2")
        self.assertEqual(benched["tokens"], 2 * (8 + 3), "the last token is not fed; the first pass is not counted")
        scored = self.record("score.json", "--perplexity", source + ":ids")
        self.assertIn(scored["tokens"], (23, 24))
        # onto one file: the sum
        self.record("sum.json", "--logits", self.path("out.safetensors"), "--ids", source + ":ids")
        both = self.record("sum.json", "--prompt", "The Linux kernel", "--max-tokens", "6", "--ignore-eos")
        self.assertEqual(both["tokens"], logits["tokens"] + generated["tokens"])
        for layer, counts in both["layers"].items():
            self.assertEqual(counts, [a + b for a, b in zip(logits["layers"][layer], generated["layers"][layer])])


if __name__ == "__main__":
    main(__doc__)

#!/usr/bin/env python3
"""Exact mode has the reference's perplexity within 0.1 %, over all 64 windows of eval_ids."""
import math
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, ktc_run_json, main  # noqa: E402
from safetensors_file import Tensor, read_tensors, write_tensors  # noqa: E402


class Perplexity(unittest.TestCase):
    def test_eval_ids(self):
        (found,) = ktc_run_json("--perplexity", Setting.reference("reference.safetensors") + ":eval_ids")
        expected = Setting.reference_json()["perplexity"]["defer_0"]
        print("perplexity", found["perplexity"], "expected", expected, found["statistics"])
        self.assertEqual(found["tokens"], 64 * 512)
        self.assertLess(abs(found["perplexity"] / expected - 1), 1e-3)

    def test_equals_what_the_dumped_logits_say(self):
        """The same number from the float32 logits, in another language."""
        ids = read_tensors(Setting.reference("reference.safetensors"), ("eval_ids",))["eval_ids"]
        rows = [ids.row(r)[:40] for r in (3, 17)]
        with tempfile.TemporaryDirectory() as folder:
            source, out = os.path.join(folder, "ids.safetensors"), os.path.join(folder, "logits.safetensors")
            write_tensors(source, {"ids": Tensor("I32", [2, 40], rows[0] + rows[1])})
            (found,) = ktc_run_json("--perplexity", source + ":ids")
            ktc_run_json("--logits", out, "--ids", source + ":ids")
            logits = read_tensors(out)["logits"]
        total = 0.0
        for r, row in enumerate(rows):
            for t in range(39):
                values = logits.row(r, t)
                best = max(values)
                total += best + math.log(math.fsum(math.exp(v - best) for v in values)) - values[row[t + 1]]
        self.assertEqual(found["tokens"], 78)
        self.assertAlmostEqual(found["perplexity"], math.exp(total / 78), places=6)

    def test_text_in_windows(self):
        text = "The Linux kernel is a program.\nIt may be configured with a file of options.\n" * 12
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            (found,) = ktc_run_json("--perplexity", path, "--window", "50")
            (ids,) = ktc_run_json("--prompt-file", path, "--max-tokens", "1")
            plain = ktc_run("--perplexity", path, "--window", "50")
        count = len(ids["prompt_ids"])
        self.assertEqual(found["tokens"], count - 1)
        self.assertEqual(found["windows"], math.ceil((count - 1) / 50))
        self.assertGreater(found["perplexity"], 1)
        self.assertRegex(plain.stdout, rf"^perplexity \d+\.\d{{6}} over {count - 1} tokens in {found['windows']} windows\n$")


if __name__ == "__main__":
    main(__doc__)

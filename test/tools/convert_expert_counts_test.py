#!/usr/bin/env python3
"""Tests of tools/convert_expert_counts.py. Where torch is installed, its reader too."""
import io
import json
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import convert_expert_counts as convert  # noqa: E402

# two steps of three layers, the first one dense, of four experts
COUNTS = [[[0, 0, 0, 0], [3, 1, 0, 2], [1, 1, 2, 2]],
          [[0, 0, 0, 0], [0, 1, 1, 2], [4, 0, 0, 0]]]


def run(arguments, recordings):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = convert.main(arguments, reader=lambda path: recordings[path])
    return status, out.getvalue(), err.getvalue()


class ConvertTest(unittest.TestCase):
    def test_steps_and_files_add_up_and_dense_layers_are_left_out(self):
        status, out, _ = run(["a", "b", "--top-k", "2"], {"a": COUNTS, "b": COUNTS})
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(out), {"tokens": 10, "layers": {"1": [6, 4, 2, 8], "2": [10, 2, 4, 4]}})
        self.assertEqual(out.count("\n"), 4)

    def test_without_top_k_tokens_are_unknown(self):
        _, out, _ = run(["a"], {"a": COUNTS})
        self.assertEqual(json.loads(out), {"layers": {"1": [3, 2, 1, 4], "2": [5, 1, 2, 2]}})

    def test_errors_are_one_line(self):
        for recording, words in [([[1, 2]], "three dimensions"), ([], "three dimensions"), ("x", "three dimensions"),
                                 ([[[1]], [[1], [2]]], "different shapes"), ([[[1.5]]], "1.5"), ([[[-1]]], "-1"), ([[[True]]], "True"),
                                 ([[[0, 0]]], "no expert was counted")]:
            status, out, err = run(["a"], {"a": recording})
            self.assertEqual((status, out, err.count("\n")), (1, "", 1), recording)
            self.assertIn(words, err)
        status, _, err = run(["a", "b"], {"a": COUNTS, "b": [[[1, 2]]]})
        self.assertEqual(status, 1)
        self.assertIn("3 layers of 4 experts, 1 of 2", err)
        status, _, err = run(["a", "--top-k", "3"], {"a": COUNTS})
        self.assertEqual(status, 1)
        self.assertIn("no multiple", err)

    def test_torch_files(self):
        try:
            import torch
        except ImportError:
            status, _, err = self.main_on_disk("x.pt")
            self.assertEqual(status, 1)
            self.assertIn("needs torch", err)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "r.pt")
            torch.save({"rank": 0, "logical_count": torch.tensor(COUNTS, dtype=torch.int32)}, path)
            status, out, _ = self.main_on_disk(path)
            self.assertEqual((status, json.loads(out)["layers"]["1"]), (0, [3, 2, 1, 4]))
            torch.save(torch.tensor(COUNTS), path)
            self.assertEqual(self.main_on_disk(path)[0], 0)
            torch.save({"other": 1}, path)
            self.assertIn("expected logical_count", self.main_on_disk(path)[2])

    def main_on_disk(self, path):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = convert.main([path])
        return status, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    unittest.main()

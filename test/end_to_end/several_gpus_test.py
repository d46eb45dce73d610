#!/usr/bin/env python3
"""Layers and hot experts on two and three GPUs, exact mode, on emulated devices: the reference's greedy ids, logits and perplexities,
also with late experts; steps that run ahead of their tokens choose what a host chooses; limits of unequal size are kept."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, main  # noqa: E402
from reference_logits import worst_differences  # noqa: E402

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "targets",
                      "emerald-rapids-16-cores-h200.yaml")
RULES = """\
version: 1
rules:
  - match: {class: RoutedExperts}
    place: {device: cpu, weights: native, activations: f32}
  - match: {name: "model[.]layers[.][0-3][.].*"}
    place: {device: cuda:0, weights: native, activations: f32}
  - match: {class: Embedding}
    place: {device: cuda:0, weights: native, activations: f32}
  - match: {class: "*"}
    place: {device: cuda:1, weights: native, activations: f32}
kv_cache: {dtype: f32, tokens: 2048, sequences: 8, page: 16}
"""
BATCH = "batch: {decode: [1, 2, 4, 8], chunk: 512}\n"
TOKENS = 32


def experts(on_gpu, strategy="uniform", devices="cuda:0, cuda:1", more=""):
    return (f"experts: {{strategy: {strategy}, on_gpu: {on_gpu}, gpu: {{devices: [{devices}], weights: native, activations: f32}}"
            f"{more}}}\n")


# Every layer's hot experts at home; layers that are hot on one GPU, on both, or not at all; all of them on a third.
HOME = experts("25%") + BATCH
DIVIDED = experts("{max: 3840KiB}", "front-loading") + BATCH
AWAY = experts("25%", devices="cuda:2") + BATCH


def late(count, scope="all"):
    return f"defer: {{max_per_token: {count}, phases: [prefill, decode], scope: {scope}}}\n"


class SeveralGpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.plans = {}
        with open(TARGET, encoding="utf-8") as f:
            text = f.read()
        gpu = text[text.index("  - device: cuda:0"):]
        cls.target = os.path.join(cls.folder.name, "three.yaml")
        with open(cls.target, "w", encoding="utf-8") as f:
            f.write(text + gpu.replace("cuda:0", "cuda:1") + gpu.replace("cuda:0", "cuda:2"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def plan(cls, policy):
        if policy in cls.plans:
            return cls.plans[policy]
        name = os.path.join(cls.folder.name, f"{len(cls.plans)}")
        with open(name + ".yaml", "w", encoding="utf-8") as f:
            f.write(RULES + policy)
        done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy", name + ".yaml", "--target",
                               cls.target, "-o", name + ".ktp"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        cls.plans[policy] = name + ".ktp"
        return cls.plans[policy]

    def report(self, policy):
        with open(os.path.join(self.plan(policy), "report.json"), encoding="utf-8") as f:
            return json.load(f)

    def run_json(self, policy, *arguments):
        done = ktc_run(*arguments, "--emulate-gpu", "--json", plan=self.plan(policy))
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def greedy(self, policy, prompts, *flags):
        return [found["ids"] for found in self.run_json(policy, *[x for p in prompts for x in ("--prompt", p)], "--max-tokens",
                                                        str(TOKENS), "--temperature", "0", *flags)]

    def assert_greedy(self, policy, *flags, count=None):
        reference = Setting.reference_json()["greedy"][:count]
        self.assertEqual(self.greedy(policy, [case["prompt"] for case in reference], *flags),
                         [case["greedy_ids"][:TOKENS] for case in reference])

    def perplexity(self, policy, count):
        (found,) = self.run_json(policy, "--perplexity", Setting.reference("reference.safetensors") + ":eval_ids")
        expected = Setting.reference_json()["perplexity"][f"defer_{count}"]
        print("late", count, "perplexity", found["perplexity"], "expected", expected)
        self.assertLess(abs(found["perplexity"] / expected - 1), 1e-3)

    def test_greedy_ids(self):
        for name, policy in (("home", HOME), ("divided", DIVIDED), ("away", AWAY)):
            for flags in ([], ["--no-graph"], ["--handoff", "hostnode"]):
                with self.subTest(plan=name, flags=flags):
                    self.assert_greedy(policy, *flags)
        self.assert_greedy(HOME, "--threads", "1", count=1)

    def test_perplexity(self):
        for count, policy in ((0, DIVIDED), (2, DIVIDED + late(2)), (4, AWAY + late(4)), (2, HOME + late(2))):
            self.perplexity(policy, count)

    def test_logits(self):
        for count in (0, 2):
            out = os.path.join(self.folder.name, "logits.safetensors")
            path = Setting.reference("reference.safetensors")
            self.run_json(DIVIDED + (late(count) if count else ""), "--logits", out, "--ids", path + ":input_ids")
            worst, _ = worst_differences(out, path, count)
            print("late", count, "largest differences over the row's range", worst)
            self.assertLessEqual(max(worst.values()), 1e-3)

    # The head is on another GPU than the embedding: ids that were chosen go back to it.
    def test_sampling_on_the_device(self):
        prompts = [case["prompt"] for case in Setting.reference_json()["greedy"][:3]]
        prompts[1] = " ".join(prompts)
        ways = (["--temperature", "0"], ["--temperature", "0.8", "--top-k", "20", "--top-p", "0.95", "--seed", "7"],
                ["--temperature", "0.7", "--repetition-penalty", "1.2", "--seed", "10"])
        arguments = [x for p in prompts for x in ("--prompt", p)] + ["--max-tokens", str(TOKENS), "--ignore-eos"]
        for policy in (HOME, DIVIDED + late(2, "cpu")):
            for way in ways:
                expected = [found["ids"] for found in self.run_json(policy, *arguments, *way, "--host-sampling")]
                for flags in ([], ["--no-graph"]):
                    with self.subTest(way=way, flags=flags):
                        found = self.run_json(policy, *arguments, *way, *flags)
                        self.assertEqual([one["ids"] for one in found], expected)

    def test_late_experts_of_the_cpu_do_not_depend_on_neighbours(self):
        prompts = [case["prompt"] for case in Setting.reference_json()["greedy"][:3]]
        policy = DIVIDED + late(3, "cpu")
        together = self.greedy(policy, prompts)
        self.assertEqual([self.greedy(policy, [p])[0] for p in prompts], together)

    # What the smaller one has no room for goes to the other, and every device keeps its limit.
    def test_limits_of_unequal_size(self):
        with self.assertRaisesRegex(AssertionError, "cuda:0 is too small by") as refused:
            self.plan(HOME + "limits: {cuda:0: 1MiB}\n")
        others = float(re.search(r"found ([0-9.]+) MiB", str(refused.exception)).group(1))  # without hot experts
        divided = []
        for more in (1.5, 2, 2.5, 3, 4, 5, 6):
            limit = int((others + more) * (1 << 20))
            policy = HOME + f"limits: {{cuda:0: {limit}B}}\n"
            hot = self.report(policy)["hot_experts_by_device"]
            used = sum(line["bytes"] for line in self.report(policy)["memory"] if line["device"] == "cuda:0")
            self.assertLessEqual(used, limit)
            if set(hot.get("cuda:0", [])) & set(hot["cuda:1"]):
                divided.append(policy)
        self.assertTrue(divided, "no layer on both")
        self.assert_greedy(divided[0])

    def test_streamed_prefill(self):
        policy = DIVIDED.replace("chunk: 512", "chunk: 8, stream_chunk: 512, stream_from: 9")
        self.assert_greedy(policy)
        self.perplexity(policy, 0)

    # At home and away from it.
    def test_experts_that_move(self):
        reference = Setting.reference_json()["greedy"]
        arguments = [x for case in reference for x in ("--prompt", case["prompt"])]
        for devices in ("cuda:0, cuda:1", "cuda:2"):
            policy = experts("25%", devices=devices, more=", update: {every_tokens: 16}") + BATCH
            found = self.run_json(policy, *arguments, "--max-tokens", str(TOKENS), "--temperature", "0", "--update", "on", "--stats")
            self.assertEqual([one["ids"] for one in found], [case["greedy_ids"][:TOKENS] for case in reference])
            moved = found[0]["statistics"]["moved_experts"]
            print(devices, moved)
            self.assertGreater(moved["moves"], 0)

    def test_trace_has_a_row_for_each(self):
        path = os.path.join(self.folder.name, "trace.json")
        self.run_json(DIVIDED, "--prompt", "x", "--max-tokens", "4", "--trace", path)
        with open(path, encoding="utf-8") as f:
            events = json.load(f)
        rows = {e["args"]["name"] for e in events if e["ph"] == "M"}
        self.assertTrue({"cuda:0", "cuda:1", "cpu"} <= rows, rows)


if __name__ == "__main__":
    main(__doc__)

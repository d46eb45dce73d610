#!/usr/bin/env python3
"""A GPU and the CPU together, exact mode, on the emulated device: the reference's greedy ids, logits and perplexities, also with
late experts; graphs, single launches, doorbells and host nodes give the same; a batch gives what each gives alone."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, main  # noqa: E402
from reference_logits import worst_differences  # noqa: E402

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "targets",
                      "emerald-rapids-16-cores-h200.yaml")
POLICY = """\
version: 1
rules:
  - match: {class: RoutedExperts}
    place: {device: cpu, weights: native, activations: f32}
  - match: {class: "*"}
    place: {device: cuda:0, weights: native, activations: f32}
experts:
  strategy: uniform
  on_gpu: ON_GPU
  gpu: {devices: [cuda:0], weights: native, activations: f32}
kv_cache: {dtype: f32, tokens: 2048, sequences: 8, page: 16}
batch: {decode: [1, 2, 4, 8], chunk: 512}
"""
STREAM = "stream_from: 9, stream_share: false"
TOKENS = 32


class Hybrid(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.plans = {}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def plan(cls, late=0, on_gpu="25%", phases="prefill, decode", scope="all", stream="", target=TARGET, halves=None, attention="cuda:0"):
        key = (late, on_gpu, phases, scope, stream, target, halves, attention)
        if key in cls.plans:
            return cls.plans[key]
        name = os.path.join(cls.folder.name, f"{len(cls.plans)}")
        with open(name + ".yaml", "w", encoding="utf-8") as f:
            text = POLICY.replace("ON_GPU", on_gpu)
            if attention != "cuda:0":
                text = text.replace("rules:\n", "rules:\n  - match: {class: Attention}\n    place: {device: " + attention + ", weights: native, activations: f32}\n")
            f.write(text.replace("chunk: 512", "chunk: 8, stream_chunk: 512, " + stream) if stream else text)
            if late:
                f.write(f"defer: {{max_per_token: {late}, phases: [{phases}], scope: {scope}}}\n")
        done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy", name + ".yaml", "--target",
                               target, "-o", name + ".ktp", *(["--halves-below", halves] if halves else [])], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        cls.plans[key] = name + ".ktp"
        return cls.plans[key]

    def run_json(self, plan, *arguments):
        done = ktc_run(*arguments, "--emulate-gpu", "--json", plan=plan)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def greedy(self, plan, prompts, *flags):
        return [found["ids"] for found in self.run_json(plan, *[x for p in prompts for x in ("--prompt", p)], "--max-tokens",
                                                         str(TOKENS), "--temperature", "0", *flags)]

    def test_greedy_ids(self):
        reference = Setting.reference_json()["greedy"]
        expected = [case["greedy_ids"][:TOKENS] for case in reference]
        prompts = [case["prompt"] for case in reference]
        for flags in ([], ["--no-graph"], ["--handoff", "hostnode"], ["--handoff", "hostnode", "--no-graph"], ["--threads", "1"]):
            with self.subTest(flags=flags):
                self.assertEqual(self.greedy(self.plan(), prompts, *flags), expected)
        for prompt, ids in zip(prompts, expected):  # alone: other buckets
            self.assertEqual(self.greedy(self.plan(), [prompt]), [ids])

    # What the plan leaves to run time, and that nothing else is taken.
    def test_choices(self):
        plan = self.plan()
        dump = subprocess.run([os.path.join(Setting.bin, "ktc-plan"), "dump", plan], capture_output=True, text=True, check=True).stdout
        self.assertEqual([line for line in dump.splitlines() if line.startswith("choice ")],
                         ['choice "handoff" automatic, doorbell, hostnode', 'choice "isa" best, scalar, avx2, avx512, avx512_vnni, amx',
                          'choice "sampling" device, host'])
        self.assertRegex(dump, r'RouteOp .* launch_group=\d+')
        done = ktc_run("--prompt", "x", "--emulate-gpu", "--update", "on", plan=plan)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("ktc-run: --update: the plan leaves nothing to choose there: found on; leave the flag out", done.stderr)

    # Steps that run ahead of their tokens, and a device that chooses: the ids of a host that waits for each of them.
    def test_sampling_on_the_device(self):
        prompts = [case["prompt"] for case in Setting.reference_json()["greedy"][:3]]
        prompts[1] = " ".join(prompts)
        ways = (["--temperature", "0"], ["--temperature", "0.8", "--top-k", "20", "--top-p", "0.95", "--seed", "7"],
                ["--temperature", "1.2", "--min-p", "0.02", "--seed", "8"], ["--temperature", "1", "--seed", "9"],
                ["--temperature", "0.7", "--repetition-penalty", "1.2", "--seed", "10"])
        arguments = [x for p in prompts for x in ("--prompt", p)] + ["--max-tokens", str(TOKENS), "--ignore-eos"]
        for way in ways:
            expected = [found["ids"] for found in self.run_json(self.plan(), *arguments, *way, "--host-sampling")]
            for flags in ([], ["--no-graph"], ["--handoff", "hostnode"]):
                with self.subTest(way=way, flags=flags):
                    found = self.run_json(self.plan(), *arguments, *way, *flags)
                    self.assertEqual([one["ids"] for one in found], expected)

    def test_placement_does_not_matter(self):
        reference = Setting.reference_json()["greedy"][:2]
        for on_gpu in ("0%", "100%"):
            self.assertEqual(self.greedy(self.plan(on_gpu=on_gpu), [case["prompt"] for case in reference]),
                             [case["greedy_ids"][:TOKENS] for case in reference])

    # With scope `all` experts are late wherever they live, and a sequence does not depend on its neighbours.
    def test_late_experts_do_not_depend_on_placement_or_neighbours(self):
        prompts = [case["prompt"] for case in Setting.reference_json()["greedy"][:3]]
        for phases in ("decode", "prefill, decode"):
            together = self.greedy(self.plan(3, phases=phases), prompts)
            self.assertEqual([self.greedy(self.plan(3, phases=phases), [p])[0] for p in prompts], together)
            self.assertEqual(self.greedy(self.plan(3, "0%", phases), prompts), together)

    def test_perplexity(self):
        for late in range(8):
            with self.subTest(late=late):
                (found,) = self.run_json(self.plan(late), "--perplexity", Setting.reference("reference.safetensors") + ":eval_ids")
                expected = Setting.reference_json()["perplexity"][f"defer_{late}"]
                print("late", late, "perplexity", found["perplexity"], "expected", expected)
                self.assertLess(abs(found["perplexity"] / expected - 1), 1e-3)

    def test_logits(self):
        for late in (0, 2, 4):
            out = os.path.join(self.folder.name, "logits.safetensors")
            path = Setting.reference("reference.safetensors")
            self.run_json(self.plan(late), "--logits", out, "--ids", path + ":input_ids")
            worst, _ = worst_differences(out, path, late)
            print("late", late, "largest differences over the row's range", worst)
            self.assertLessEqual(max(worst.values()), 1e-3)

    # Prompts of more than 8 tokens go through entries that copy the CPU's experts to the device and compute them there.
    def test_streamed_prefill(self):
        reference = Setting.reference_json()
        prompts = [case["prompt"] for case in reference["greedy"]]
        expected = [case["greedy_ids"][:TOKENS] for case in reference["greedy"]]
        for on_gpu in ("25%", "0%"):
            self.assertEqual(self.greedy(self.plan(on_gpu=on_gpu, stream=STREAM), prompts), expected)
        for late in (0, 3):
            (found,) = self.run_json(self.plan(late, stream=STREAM), "--perplexity", Setting.reference("reference.safetensors") + ":eval_ids")
            self.assertLess(abs(found["perplexity"] / reference["perplexity"][f"defer_{late}"] - 1), 1e-3)
        path = os.path.join(self.folder.name, "stream.json")
        long = " ".join(prompts)
        self.run_json(self.plan(stream=STREAM), "--prompt", long, "--max-tokens", "2", "--trace", path)
        with open(path, encoding="utf-8") as f:
            events = json.load(f)
        rows = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
        names = {row: [e["name"] for e in events if e["ph"] == "X" and e["tid"] == tid] for row, tid in rows.items()}
        self.assertEqual(names["steps"][0], "extend[512]")
        self.assertTrue(names["copies to cuda:0"])
        self.assertEqual([n for n in names["cuda:0"] if n in set(names["copies to cuda:0"])], names["copies to cuda:0"])

    # Prompts whole, and cut in halves that the devices compute in turns, whatever is predicted of them.
    def test_halves(self):
        reference = Setting.reference_json()
        prompts = [case["prompt"] for case in reference["greedy"]]
        expected = [case["greedy_ids"][:TOKENS] for case in reference["greedy"]]
        ways = {"whole": "0", "halves": "1000"}
        self.assertEqual(self.greedy(self.plan(halves=ways["halves"]), prompts), expected)
        for prompt, ids in zip(prompts[:2], expected):
            self.assertEqual(self.greedy(self.plan(halves=ways["halves"]), [prompt]), [ids])
        for late, attention in ((0, "cuda:0"), (3, "cpu")):
            found = {way: self.run_json(self.plan(late, halves=below, attention=attention), "--perplexity",
                                        Setting.reference("reference.safetensors") + ":eval_ids")[0]["perplexity"] for way, below in ways.items()}
            print("late", late, "perplexities", found)
            self.assertLess(abs(found["halves"] / reference["perplexity"][f"defer_{late}"] - 1), 1e-3)
            self.assertLess(abs(found["halves"] / found["whole"] - 1), 1e-6)
        counts = {}
        for way, below in ways.items():
            path = os.path.join(self.folder.name, way)
            self.run_json(self.plan(halves=below), "--prompt", " ".join(prompts), "--max-tokens", "2", "--record-experts", path + ".counts",
                          "--trace", path + ".trace")
            with open(path + ".counts", encoding="utf-8") as f:
                counts[way] = json.load(f)
            with open(path + ".trace", encoding="utf-8") as f:
                events = [e for e in json.load(f) if e["ph"] == "X"]
            cut = [e for e in events if e["name"].endswith((".first", ".second"))]
            self.assertEqual(bool(cut), way == "halves")
        self.assertEqual(counts["halves"], counts["whole"])

    # Over a slow link the CPU takes a share of what streams, in exact mode without a trace in the results.
    def test_streamed_prefill_with_a_share(self):
        reference = Setting.reference_json()
        prompts = [case["prompt"] for case in reference["greedy"]]
        expected = [case["greedy_ids"][:TOKENS] for case in reference["greedy"]]
        target = os.path.join(self.folder.name, "slow-link.yaml")
        with open(TARGET, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("pcie_gb_per_s: 55.5", text)
        with open(target, "w", encoding="utf-8") as f:
            f.write(text.replace("pcie_gb_per_s: 55.5", "pcie_gb_per_s: 0.3"))
        shares = {}
        for on_gpu in ("25%", "0%"):
            plan = self.plan(on_gpu=on_gpu, stream="stream_from: 9", target=target)
            self.assertEqual(self.greedy(plan, prompts), expected)
            (found,) = self.run_json(plan, "--prompt", " ".join(prompts), "--max-tokens", "1", "--stats")
            shares[on_gpu] = found["statistics"]["streamed_pairs_on_cpu"]
            (found,) = self.run_json(plan, "--perplexity", Setting.reference("reference.safetensors") + ":eval_ids")
            self.assertLess(abs(found["perplexity"] / reference["perplexity"]["defer_0"] - 1), 1e-3)
        print("pairs on the CPU", shares)
        for share in shares.values():
            self.assertTrue(0.05 < share < 1, shares)

    def test_trace_and_shares(self):
        case = Setting.reference_json()["greedy"][0]
        for flags, gpu in (([], "decode[1]"), (["--no-graph"], "experts")):
            path = os.path.join(self.folder.name, "trace.json")
            (found,) = self.run_json(self.plan(), "--prompt", case["prompt"], "--max-tokens", "4", "--trace", path, "--stats", *flags)
            self.assertEqual(found["ids"], case["greedy_ids"][:4])
            for key in ("cpu_busy", "gpu_busy_at_least"):
                self.assertTrue(0 < found["statistics"][key] < 1, found["statistics"])
            with open(path, encoding="utf-8") as f:
                events = json.load(f)
            rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
            self.assertEqual(sorted(rows.values()), ["cpu", "cpu waits", "cuda:0", "steps"])
            slices = [e for e in events if e["ph"] == "X"]
            steps = [e["name"] for e in slices if rows[e["tid"]] == "steps"]
            self.assertEqual(steps[1:], ["decode[1]"] * 3)
            self.assertTrue(any(gpu in e["name"] for e in slices if rows[e["tid"]] == "cuda:0"))
            for row in rows:
                end = 0.0
                for e in (e for e in slices if e["tid"] == row):
                    self.assertGreaterEqual(e["ts"], end - 0.002, e)
                    end = e["ts"] + e["dur"]

    def test_needs_a_device(self):
        done = ktc_run("--prompt", "x", plan=self.plan())
        if done.returncode == 0:
            self.skipTest("this machine has a GPU")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"ktc-run: device cuda:0: ")
        self.assertEqual(len([line for line in done.stderr.splitlines() if line.startswith("ktc-run:")]), 1)


if __name__ == "__main__":
    main(__doc__)

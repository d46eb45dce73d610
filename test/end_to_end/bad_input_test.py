#!/usr/bin/env python3
"""Every kind of broken input gives one line that names the thing, exit status 1, little memory, within two seconds."""
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, main  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
POLICY = os.path.join(HERE, "..", "..", "placement", "policies", "exact.yaml")
SECONDS = 2.0
MEMORY = 512 << 20  # address space beyond this would be a large allocation: the plan of the demo needs less


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


class BadInput(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.limit = limit_memory

    def model(self):
        """A copy of the checkpoint that may be damaged; weights are hard copies because tests cut them."""
        path = os.path.join(self.folder, "model")
        shutil.copytree(Setting.model, path, ignore=shutil.ignore_patterns("reference", "eval.txt"))
        return path

    def plan(self):
        path = os.path.join(self.folder, "copy.ktp")
        shutil.copytree(Setting.plan, path)
        return path

    def fails(self, tool, *arguments, says):
        start = time.monotonic()
        done = subprocess.run([os.path.join(Setting.bin, tool), *arguments], capture_output=True, text=True, check=False,
                              timeout=30, preexec_fn=self.limit)
        seconds = time.monotonic() - start
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = [line for line in done.stderr.splitlines() if not line.startswith(f"{tool}: warning:")]
        self.assertTrue(lines[-1].startswith(f"{tool}: "), done.stderr)
        if tool == "ktc-run":  # it states sampling and stop tokens before it reads prompts
            lines = lines[-1:]
        self.assertEqual(len(lines), 1, done.stderr)
        for part in says:
            self.assertIn(part, lines[0])
        self.assertLess(seconds, SECONDS)
        self.assertEqual(done.stdout, "")
        return lines[0]

    def compile_fails(self, model, *arguments, policy=POLICY, says):
        output = os.path.join(self.folder, "out.ktp")
        line = self.fails("ktc", "compile", model, "--policy", policy, "-o", output, *arguments, says=says)
        self.assertFalse(os.path.exists(os.path.join(output, "plan.ktp")))
        return line

    def policy(self, text):
        path = os.path.join(self.folder, "p.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    # ------------------------------------------------------------------------------------------------ the checkpoint

    def shards(self, model):
        return sorted(f for f in os.listdir(model) if f.endswith(".safetensors"))

    def test_missing_shard(self):
        model = self.model()
        last = self.shards(model)[-1]
        os.remove(os.path.join(model, last))
        self.compile_fails(model, says=[last, "incomplete download?"])

    def test_truncated_shard(self):
        model = self.model()
        last = self.shards(model)[-1]
        size = os.path.getsize(os.path.join(model, last))
        os.truncate(os.path.join(model, last), size - 1024)
        self.compile_fails(model, says=[last, str(size), str(size - 1024)])

    def rewrite_header(self, model, change):
        """Applies `change` to the JSON header of the last shard; the data stay where they are."""
        path = os.path.join(model, self.shards(model)[-1])
        with open(path, "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
            data = f.read()
        change(header)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data)

    def change_index(self, model, change):
        path = os.path.join(model, "model.safetensors.index.json")
        with open(path, encoding="utf-8") as f:
            index = json.load(f)
        change(index["weight_map"])
        with open(path, "w", encoding="utf-8") as f:
            json.dump(index, f)

    def a_norm(self, model):
        path = os.path.join(model, self.shards(model)[-1])
        with open(path, "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
        return next(n for n in sorted(header) if n.endswith("input_layernorm.weight"))

    def test_missing_tensor(self):
        model = self.model()
        name = self.a_norm(model)
        self.rewrite_header(model, lambda h: h.pop(name))
        self.change_index(model, lambda w: w.pop(name))
        self.compile_fails(model, says=[name])

    def test_extra_tensor(self):
        model = self.model()
        name, shard = self.a_norm(model), self.shards(model)[-1]
        extra = name.replace("input_layernorm", "surprise")
        self.rewrite_header(model, lambda h: h.update({extra: h[name]}) or h.pop(name))
        self.change_index(model, lambda w: w.update({extra: shard}) or w.pop(name))
        self.compile_fails(model, says=[extra, name])

    def test_misshapen_tensor(self):
        model = self.model()
        name = self.a_norm(model)

        def halve(header):
            (n,) = header[name]["shape"]
            begin, _ = header[name]["data_offsets"]
            header[name]["shape"] = [n // 2]
            header[name]["data_offsets"] = [begin, begin + n]
        self.rewrite_header(model, halve)
        self.compile_fails(model, says=[name, "96", "192"])

    def change_config(self, model, **changes):
        path = os.path.join(model, "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        config.update(changes)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)

    def test_unknown_architecture(self):
        model = self.model()
        self.change_config(model, architectures=["GiraffeForCausalLM"], model_type="giraffe")
        self.compile_fails(model, says=["config.json", "GiraffeForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"])

    def test_config_is_not_json(self):
        model = self.model()
        os.truncate(os.path.join(model, "config.json"), 100)
        self.compile_fails(model, says=["config.json"])

    def test_no_such_folder(self):
        self.compile_fails(os.path.join(self.folder, "nowhere"), says=["nowhere"])

    # ----------------------------------------------------------------------------------------------------- the policy

    def test_unknown_policy_key(self):
        policy = self.policy("version: 1\nrulez: []\n")
        self.compile_fails(Setting.model, policy=policy, says=["p.yaml:2:1", "rulez", "rules"])

    def test_rule_that_matches_nothing(self):
        policy = self.policy("version: 1\nrules:\n  - match: {class: RoutedExperts, name: 'model\\.layers\\.99\\..*'}\n"
                             "    place: {device: cpu, weights: bf16}\n  - match: {class: '*'}\n    place: {device: cpu}\n")
        self.compile_fails(Setting.model, policy=policy, says=["p.yaml:3:", "99"])

    def test_unknown_device(self):
        policy = self.policy("version: 1\nrules:\n  - match: {class: '*'}\n    place: {device: cuda:7}\n")
        self.compile_fails(Setting.model, policy=policy, says=["p.yaml:4:", "cuda:7", "cpu"])

    def test_output_that_is_not_a_plan(self):
        other = os.path.join(self.folder, "letters")
        os.mkdir(other)
        with open(os.path.join(other, "letter.txt"), "w", encoding="utf-8") as f:
            f.write("dear")
        line = self.fails("ktc", "compile", Setting.model, "--policy", POLICY, "-o", other, says=["letters", "letter.txt"])
        self.assertIn("choose another -o", line)
        self.assertEqual(os.listdir(other), ["letter.txt"])

    # ------------------------------------------------------------------------------------------------------- the plan

    def run_fails(self, plan, *arguments, says):
        return self.fails("ktc-run", plan, "--prompt", "The", *arguments, says=says)

    def edit(self, plan, offset, change):
        path = os.path.join(plan, "plan.ktp")
        with open(path, "rb") as f:
            data = bytearray(f.read())
        change(data, offset)
        with open(path, "wb") as f:
            f.write(data)

    def test_plan_of_another_version(self):
        plan = self.plan()
        self.edit(plan, 4, lambda d, o: d.__setitem__(slice(o, o + 4), b"KTP2"))
        self.run_fails(plan, says=["KTP2", "KTP1", "compile"])

    def test_plan_with_a_flipped_byte(self):
        size = os.path.getsize(os.path.join(Setting.plan, "plan.ktp"))
        for offset in (8, size // 3, size // 2, size - 20):
            with self.subTest(offset=offset):
                plan = self.plan()
                self.edit(plan, offset, lambda d, o: d.__setitem__(o, d[o] ^ 0x10))
                self.run_fails(plan, says=["plan.ktp"])
                shutil.rmtree(plan)

    def test_plan_cut_short(self):
        size = os.path.getsize(os.path.join(Setting.plan, "plan.ktp"))
        for length in (0, 7, 100, size - 1):
            with self.subTest(length=length):
                plan = self.plan()
                os.truncate(os.path.join(plan, "plan.ktp"), length)
                self.run_fails(plan, says=["plan.ktp"])
                shutil.rmtree(plan)

    def test_weights_missing(self):
        plan = self.plan()
        os.remove(os.path.join(plan, "cpu.weights"))
        self.run_fails(plan, says=["cpu.weights"])

    def test_weights_of_the_wrong_length(self):
        plan = self.plan()
        path = os.path.join(plan, "cpu.weights")
        size = os.path.getsize(path)
        os.truncate(path, size - 4096)
        self.run_fails(plan, says=["cpu.weights", str(size), str(size - 4096)])

    def test_prompt_longer_than_the_cache(self):
        path = os.path.join(self.folder, "long.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.write("word " * 5000)
        self.limit = None  # the plan is good: its arena and cache may be mapped before the prompt is seen
        self.fails("ktc-run", Setting.plan, "--prompt-file", path, says=["tokens", "2048"])


if __name__ == "__main__":
    main(__doc__)

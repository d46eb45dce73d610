#!/usr/bin/env python3
"""Two GPUs of one machine: the demo's reference, latent attention against one GPU, and decode tokens a second against one GPU.

    two_gpus.py BUILD [--emulate-gpu]     BUILD: a folder with bin/ktc and bin/ktc-run

The demo in exact mode, with its layers on two GPUs and hot experts on both, has to give the reference's greedy ids, logits and
perplexities; a model of DeepSeek-V3's kind with made-up weights gives on two GPUs what it gives on one, to the bit. Speeds are of
Qwen3-30B-A3B's shape with made-up weights. Exit status 1 where anything differs; --emulate-gpu leaves the speeds out."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "test", "support"))
from reference_logits import worst_differences  # noqa: E402
from safetensors_file import read_tensors  # noqa: E402

DEMO = os.path.join(ROOT, "models", "demo")
TENSORS = os.path.join(DEMO, "reference", "reference.safetensors")
SHAPES = os.path.join(ROOT, "test", "shapes")
EXACT = """kv_cache: {dtype: f32, tokens: 2048, sequences: 8, page: 16}
batch: {decode: [1, 2, 4, 8], chunk: CHUNK}
"""
LARGE = """kv_cache: {dtype: bf16, tokens: 16384, sequences: 4, page: 16}
batch: {decode: [1, 4], chunk: 2048}
"""


def rules(first_layers, cold, others):
    """Layers that match on cuda:0 with the embedding, the rest on cuda:1; no layers: all on cuda:0."""
    text = "version: 1\nrules:\n"
    if cold:
        text += f"  - match: {{class: RoutedExperts}}\n    place: {{device: cpu, {cold}}}\n"
    if first_layers:
        text += f"  - match: {{name: \"model[.]layers[.]({first_layers})[.].*\"}}\n    place: {{device: cuda:0, {others}}}\n"
        text += f"  - match: {{class: Embedding}}\n    place: {{device: cuda:0, {others}}}\n"
    return text + f"  - match: {{class: \"*\"}}\n    place: {{device: cuda:{1 if first_layers else 0}, {others}}}\n"


def hot(on_gpu, devices, formats, strategy="uniform", more=""):
    return f"experts: {{strategy: {strategy}, on_gpu: {on_gpu}, gpu: {{devices: [{devices}], {formats}}}{more}}}\n"


class Check:
    def __init__(self, build, emulate):
        self.bin, self.emulate, self.failed = os.path.join(build, "bin"), ["--emulate-gpu"] if emulate else [], False
        self.folder = tempfile.mkdtemp()
        with open(os.path.join(ROOT, "placement", "targets", "emerald-rapids-16-cores-h200.yaml"), encoding="utf-8") as f:
            text = f.read()
        self.target = self.write("target.yaml", text + text[text.index("  - device: cuda:0"):].replace("cuda:0", "cuda:1"))
        with open(os.path.join(DEMO, "reference", "reference.json"), encoding="utf-8") as f:
            self.reference = json.load(f)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def say(self, what, found, good=True):
        print(f"{what}: {found}{'' if good else '  WRONG'}", flush=True)
        self.failed = self.failed or not good

    def tool(self, name, *arguments):
        done = subprocess.run([os.path.join(self.bin, name), *arguments], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            self.say(" ".join((name, *arguments[:1])), done.stderr.strip()[-300:], False)
        return done

    def compile(self, model, policy, *flags):
        out = os.path.join(self.folder, "plan.ktp")
        shutil.rmtree(out, ignore_errors=True)
        done = self.tool("ktc", "compile", model, "--policy", self.write("policy.yaml", policy), "--target", self.target, "-o", out, *flags)
        return out if done.returncode == 0 else None

    def run(self, plan, *arguments):
        done = self.tool("ktc-run", plan, *arguments, "--json", *self.emulate)
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else None

    def greedy(self, name, plan, *flags):
        cases = self.reference["greedy"]
        prompts = [x for case in cases for x in ("--prompt", case["prompt"])]
        found = self.run(plan, *prompts, "--max-tokens", "32", "--temperature", "0", *flags) or []
        equal = sum(one["ids"] == case["greedy_ids"][:32] for one, case in zip(found, cases))
        self.say(" ".join((name, *flags, "greedy")), f"{equal} of {len(cases)} prompts equal", equal == len(cases))

    def write_logits(self, plan):
        out = os.path.join(self.folder, "logits.safetensors")
        return out if self.run(plan, "--logits", out, "--ids", TENSORS + ":input_ids") else None

    def logits(self, name, plan, late):
        out = self.write_logits(plan)
        if out is None:
            return
        worst = max(worst_differences(out, TENSORS, late)[0].values())
        self.say(name + " logits", f"differ by {worst:.1e} of their range", worst <= 1e-3)

    def perplexity(self, name, plan, late):
        found = self.run(plan, "--perplexity", TENSORS + ":eval_ids")
        if found:
            off = abs(found[0]["perplexity"] / self.reference["perplexity"][f"defer_{late}"] - 1)
            self.say(name + " perplexity", f"{found[0]['perplexity']:.5f}, off by {off:.1e}", off < 1e-3)

    def demo(self):
        exact = "weights: native, activations: f32"
        both, two, one = "cuda:0, cuda:1", rules("[0-3]", exact, exact), rules("", exact, exact)
        divided = hot("{max: 3840KiB}", both, exact, "front-loading")
        usual = EXACT.replace("CHUNK", "512")
        for name, policy, late, flags in (
                ("layers on two, hot experts at home", two + hot("25%", both, exact) + usual, 0, []),
                ("layers on two, hot experts divided", two + divided + usual, 0, []),
                ("the same, two late", two + divided + usual + "defer: {max_per_token: 2, phases: [prefill, decode], scope: all}\n", 2, []),
                ("layers on one, hot experts on the other", one + hot("25%", "cuda:1", exact) + usual, 0, []),
                ("experts that move", two + hot("25%", both, exact, more=", update: {every_tokens: 16}") + usual, 0, ["--update", "on"]),
                ("streamed prompts", two + divided + EXACT.replace("CHUNK", "8, stream_chunk: 512, stream_from: 9"), 0, [])):
            plan = self.compile(DEMO, policy)
            if plan is None:
                continue
            if late == 0:
                self.greedy(name, plan, *flags)
            self.logits(name, plan, late)
            self.perplexity(name, plan, late)

    # A config that is small, with the demo's tokenizer.
    def latent(self):
        model = os.path.join(self.folder, "mla")
        os.makedirs(model)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(os.path.join(DEMO, name), model)
        with open(os.path.join(SHAPES, "deepseek-v3", "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        config.update(num_hidden_layers=8, hidden_size=256, intermediate_size=512, moe_intermediate_size=64, n_routed_experts=64,
                      num_attention_heads=4, q_lora_rank=128, vocab_size=4096, first_k_dense_replace=1, num_key_value_heads=4)
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        exact, found = "weights: native, activations: f32", []
        for layers in ("", "[0-3]"):
            plan = self.compile(model, rules(layers, exact, exact) + EXACT.replace("CHUNK", "512"), "--random-weights")
            if plan is None:
                return
            ids = self.run(plan, "--prompt", "One day a girl", "--prompt", "The dog ran to", "--max-tokens", "32", "--temperature", "0")
            out = self.write_logits(plan)
            logits = out and read_tensors(out)["logits"]
            found.append((ids and [one["ids"] for one in ids], logits and [logits.row(r, t) for r in range(2) for t in range(0, 64, 7)]))
        self.say("latent attention on one GPU and on two", "equal" if found[0] == found[1] else "not equal", found[0] == found[1])

    def speed(self):
        half, cpu, gpu = "[0-9]|1[0-9]|2[0-3]", "weights: int4, group: 64", "weights: native"
        for name, policy in (("one GPU, experts on the CPU", rules("", cpu, gpu)),
                             ("layers on two, experts on the CPU", rules(half, cpu, gpu)),
                             ("one GPU, half the experts hot", rules("", cpu, gpu) + hot("50%", "cuda:0", cpu)),
                             ("layers and half the experts on two", rules(half, cpu, gpu) + hot("50%", "cuda:0, cuda:1", cpu)),
                             ("layers on one, half the experts on the other", rules("", cpu, gpu) + hot("50%", "cuda:1", cpu)),
                             ("all on one GPU", rules("", "", gpu)), ("all on two", rules(half, "", gpu))):
            plan = self.compile(os.path.join(SHAPES, "qwen3-30b-a3b"), policy + LARGE, "--random-weights", "--alias-layers", "4")
            if plan is not None:
                done = self.tool("ktc-run", plan, "--bench", "64,128", "--repeat", "3")
                self.say(name, done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "nothing", done.returncode == 0)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    check = Check(sys.argv[1], "--emulate-gpu" in sys.argv[2:])
    try:
        check.demo()
        check.latent()
        if not check.emulate:
            check.speed()
    finally:
        shutil.rmtree(check.folder)
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()

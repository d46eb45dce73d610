#!/usr/bin/env python3
"""Predicted against measured speed of the plans of docs/performance.md; check_prediction.sh calls it.

A round is: probe, then for every plan predict and measure. With several rounds a row has the medians of both and of their ratio: on a
machine whose rates move within minutes one round says little."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
CPU = """version: 1
rules:
  - match: {{class: RoutedExperts}}
    place: {{device: cpu, weights: {experts}}}
  - match: {{class: "*"}}
    place: {{device: cpu, weights: {rest}}}
kv_cache: {{dtype: bf16, tokens: 1024, sequences: 1, page: 16}}
batch: {{decode: [1], chunk: 256}}
"""
# random: the same experts whether the policy has counts or not
HALF = "experts: {strategy: random, on_gpu: 50%, gpu: {devices: [cuda:0], weights: int4, group: 64}}\n"
LATE = "defer: {max_per_token: 4, phases: [decode], scope: cpu}\n"


# Routers of made-up weights choose by Zipf's law and tokens are drawn: greedy ones repeat, and so do their experts, which a last cache
# of hundreds of megabytes then holds.
ZIPF = "0.6"
DRAWN = ["--temperature", "1", "--top-k", "20", "--seed", "1"]


def plan(name, model, policy, prompt, new, alias=0, streamed=False, extra="", record=True, drawn=True):
    return {"name": name, "model": model, "policy": policy, "prompt": prompt, "new": new, "alias": alias, "streamed": streamed, "extra": extra,
            "record": record, "drawn": drawn}


def shapes():
    q30, q80, v3 = "test/shapes/qwen3-30b-a3b", "test/shapes/qwen3-next-like", "test/shapes/deepseek-v3"
    on_cpu, on_gpu = "test/shapes/policies/int4-experts-on-cpu.yaml", "test/shapes/policies/all-on-gpu.yaml"
    # Layers of bytes: so many that a large last cache (260 MB) has forgotten a layer's experts when their bytes come again.
    return [
        plan("q30-int4", q30, on_cpu, 2048, 32, 24),
        plan("q30-int4-late4", q30, on_cpu, 2048, 32, 24, extra=LATE),
        plan("q30-int4-half-hot", q30, on_cpu, 2048, 32, 24, extra=HALF),
        plan("q80-int4", q80, on_cpu, 1024, 32, 20),
        plan("v3-int4", v3, "test/shapes/policies/int8-dense-int4-experts.yaml", 256, 12, 3, extra="limits: {cpu: 900GiB}\n"),
        plan("q30-all-on-gpu", q30, on_gpu, 2048, 64, 4, record=False, drawn=False),
        plan("q30-streamed", q30, "test/shapes/policies/int4-streamed.yaml", 8192, 32, 24, streamed=True, record=False),
        plan("q30-cpu-int8", q30, CPU.format(experts="int8", rest="int8"), 256, 16, 16),
        plan("q30-cpu-int4", q30, CPU.format(experts="int4", rest="int8"), 256, 16, 24),
    ]


def checkpoints(folders):
    plans = []
    for folder in folders:
        for words, experts, rest in (("bf16", "native", "native"), ("int8", "int8", "int8"), ("int4", "int4", "int8")):
            plans.append(plan(f"{os.path.basename(os.path.normpath(folder))}-{words}", folder, CPU.format(experts=experts, rest=rest), 256, 64))
    return plans


def policy_text(p, root, counts=None):
    """The plan's policy, cut to what is measured: steps as long as the prompt, a context of the middle of the generated tokens.

    counts: what was chosen while the plan ran. Routers of made-up weights prefer some experts as trained ones do."""
    text = p["policy"]
    if "\n" not in text:
        with open(os.path.join(root, text), encoding="utf-8") as f:
            text = f.read()
    context = 2 * p["prompt"] + p["new"]
    text = re.sub(r"(?m)^kv_cache:.*$", f"kv_cache: {{dtype: bf16, tokens: {context}, sequences: 1, page: 16}}", text)
    chunk = f"chunk: 2048, stream_chunk: {p['prompt']}" if p["streamed"] else f"chunk: {p['prompt']}"
    text = re.sub(r"(?m)^batch:.*$", f"batch: {{decode: [1], {chunk}}}", text)
    extra = p["extra"]
    if counts and "experts: {" in extra:
        extra = extra.replace("experts: {", f"experts: {{statistics: {counts}, ")
    elif counts:
        text += f"experts: {{statistics: {counts}}}\n"
    return text + extra


class Machine:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.model_flags = ["--families", options.families] if options.families else []

    def call(self, words, **more):
        begin = time.time()
        if self.options.nice is not None:
            words = ["nice", "-n", str(self.options.nice), *words]
        try:
            result = subprocess.run(words, capture_output=True, text=True, timeout=self.options.timeout, **more)
        except subprocess.TimeoutExpired:
            return None, f"took more than {self.options.timeout} s", time.time() - begin
        error = result.stderr.strip().splitlines()[-1:] or [""]
        return (result.stdout if result.returncode == 0 else None), error[0], time.time() - begin

    def probe(self, path):
        out, error, seconds = self.call([os.path.join(self.options.bin, "ktc"), "probe", "-o", path, *self.model_flags, *self.options.probe_flag])
        if out is None:
            sys.exit(f"check_prediction: ktc probe: {error}")
        return seconds, error  # what the probe said last

    def counts(self, p):
        return os.path.abspath(os.path.join(self.options.out, p["name"] + ".counts.json"))

    def compile_words(self, p, target, counts=None):
        policy = os.path.join(self.folder, p["name"] + ".yaml")
        with open(policy, "w", encoding="utf-8") as f:
            f.write(policy_text(p, ROOT, counts))
        model = p["model"] if os.path.isabs(p["model"]) else os.path.join(ROOT, p["model"])
        words = [os.path.join(self.options.bin, "ktc"), "compile", model, "--policy", policy, "--target", target, *self.model_flags]
        if not any(name.endswith(".safetensors") for name in os.listdir(model)):
            words += ["--random-weights", "--router-zipf", ZIPF]
            if p["alias"]:
                words += ["--alias-layers", str(p["alias"])]
        return words

    def predict(self, p, target):
        counts = self.counts(p) if os.path.exists(self.counts(p)) else None
        text, error, _ = self.call([*self.compile_words(p, target, counts), "--dry-run"])
        if text is None:
            return None, error
        steps = {}
        for entry, rate, bound, share in re.findall(r"^\s+(\w+)\[\d+\]\s+([\d.]+) tokens/s.*bound by ([^(]+) \((\d+) %\)", text, re.M):
            steps[entry] = (float(rate), f"{bound} {share} %")
        parts = re.findall(r"us of parts, which overlap: (.*)", text)
        return (steps, parts), ""

    def measure(self, p, target):
        path = os.path.join(self.folder, p["name"] + ".ktp")
        if not os.path.isdir(path):
            out, error, _ = self.call([*self.compile_words(p, target), "-o", path])
            if out is None:
                return None, error
        words = [os.path.join(self.options.bin, "ktc-run"), path, "--bench", f"{p['prompt']},{p['new']}", "--repeat", str(self.options.repeat),
                 "--json", *(DRAWN if p["drawn"] else []), *self.options.run_flag]
        if os.path.exists(self.counts(p)):  # ktc-run adds to it
            os.remove(self.counts(p))
        if p["record"]:
            words += ["--record-experts", self.counts(p)]
        if self.options.steps:
            words += ["--trace", path + ".trace"]
        out, error, _ = self.call(words)
        if out is None:
            return None, error
        rates = json.loads(out)
        if self.options.steps:  # medians of steps instead of means over all of them
            with open(path + ".trace", encoding="utf-8") as f:
                events = json.load(f)
            steps = next(e["tid"] for e in events if e["ph"] == "M" and e["args"]["name"] == "steps")
            for kind, rows in (("decode", 1), ("prefill", p["prompt"])):
                us = [e["dur"] for e in events if e["ph"] == "X" and e["tid"] == steps and e["name"].startswith("decode") == (kind == "decode")]
                rates[kind + "_tokens_per_second"] = rows * 1e6 / statistics.median(us)
        return rates, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--families", help="folder of family declarations; default: beside the program")
    parser.add_argument("--checkpoint", action="append", help="instead of the shapes: this checkpoint on the CPU in bf16, int8 and int4")
    parser.add_argument("--plans", help="only those whose name holds one of these words, a,b")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=2, help="of ktc-run --bench")
    parser.add_argument("--target", help="a target file instead of ktc probe")
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--timeout", type=float, default=120, help="seconds of one call")
    parser.add_argument("--steps", action="store_true", help="medians of steps, for machines where other programs run")
    parser.add_argument("--nice", type=int, help="of probe and runs, for the same")
    parser.add_argument("--probe-flag", action="append", default=[])
    parser.add_argument("--run-flag", action="append", default=[])
    options = parser.parse_args()
    plans = checkpoints(options.checkpoint) if options.checkpoint else shapes()
    if options.plans:
        plans = [p for p in plans if any(word in p["name"] for word in options.plans.split(","))]
    rows, failed = {}, []
    with tempfile.TemporaryDirectory(prefix="ktc-prediction-") as folder:
        machine = Machine(options, folder)
        for number in range(options.rounds):
            target = options.target
            if target is None:
                target = os.path.join(options.out, "target.yaml")
                seconds, last = machine.probe(target)
                print(f"probed in {seconds:.0f} s; {last}", flush=True)
            for p in plans:
                measured, wrong = machine.measure(p, target)
                predicted, error = machine.predict(p, target) if measured else (None, wrong)
                if predicted is None:
                    failed.append(p["name"])
                    print(f"{p['name']}: {error}", flush=True)
                    continue
                steps, parts = predicted
                prefill = "stream" if "stream" in steps else "extend"
                for entry, key in (("decode", "decode_tokens_per_second"), (prefill, "prefill_tokens_per_second")):
                    row = rows.setdefault((p["name"], entry), {"predicted": [], "measured": [], "ratio": []})
                    row["predicted"].append(steps[entry][0])
                    row["measured"].append(measured[key])
                    row["ratio"].append(steps[entry][0] / measured[key])
                    row["bound"], row["parts"] = steps[entry][1], parts[list(steps).index(entry)]
                now = ", ".join(f"{e} {r['predicted'][-1]:.1f} / {r['measured'][-1]:.1f} = {r['ratio'][-1]:.2f}"
                                for (n, e), r in rows.items() if n == p["name"])
                print(f"round {number + 1}: {p['name']}: {now}", flush=True)
    print(f"\n{'plan':<22}{'entry':<8}{'predicted':>10}{'measured':>10}{'ratio':>7}{'  range' if options.rounds > 1 else '':<14}  bound by")
    within = 0
    table = []
    for (name, entry), row in rows.items():
        middle = {key: statistics.median(row[key]) for key in ("predicted", "measured", "ratio")}
        good = abs(middle["ratio"] - 1) <= options.tolerance
        within += good
        spread = f"  {min(row['ratio']):.2f}-{max(row['ratio']):.2f}" if options.rounds > 1 else ""
        print(f"{name:<22}{entry:<8}{middle['predicted']:>10.1f}{middle['measured']:>10.1f}{middle['ratio']:>7.2f}{spread:<14}  {row['bound']}"
              f"{'' if good else '  <<'}\n{'':<30}{row['parts']}")
        table.append({"plan": name, "entry": entry, **row})
    print(f"within {100 * options.tolerance:.0f} %: {within} of {len(rows)}")
    with open(os.path.join(options.out, "prediction.json"), "w", encoding="utf-8") as f:
        json.dump(table, f, indent=1)
    sys.exit(1 if failed or within < len(rows) else 0)


if __name__ == "__main__":
    main()

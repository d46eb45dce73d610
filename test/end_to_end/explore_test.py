#!/usr/bin/env python3
"""ktc explore and ktc probe on the demo checkpoint: tables, JSON, pictures, what is refused, what is measured."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

parser = argparse.ArgumentParser()
parser.add_argument("--bin", required=True)
parser.add_argument("--plan")
parser.add_argument("--model", required=True)
options = parser.parse_args()
ktc = os.path.join(options.bin, "ktc")
source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
target = os.path.join(source, "placement", "targets", "emerald-rapids-16-cores-h200.yaml")
families = os.path.join(source, "models", "families")

POLICY = """version: 1
rules:
  - match: {class: RoutedExperts}
    place: {device: cpu, weights: int8}
  - match: {class: "*"}
    place: {device: %s}
kv_cache: {tokens: 512}
batch: {decode: [1, 2], chunk: 128}
"""


def run(*arguments):
    return subprocess.run([ktc, *arguments], capture_output=True, text=True, timeout=300)


def check(condition, words):
    if not condition:
        print("FAILED:", words)
        sys.exit(1)


with tempfile.TemporaryDirectory() as folder:
    hybrid, cpu = os.path.join(folder, "hybrid.yaml"), os.path.join(folder, "cpu.yaml")
    for path, device in [(hybrid, "cuda:0"), (cpu, "cpu")]:
        with open(path, "w") as f:
            f.write(POLICY % device)
    rows, svg, common = os.path.join(folder, "rows.json"), os.path.join(folder, "out.svg"), ["--families", families]

    result = run("explore", options.model, "--policy", hybrid, "--target", target, "--strategy", "uniform,random,auto", "--gpu-experts",
                 "0%,25%,100%", "--defer", "0,2", "--format", "int8,int4", "--json", rows, "--plot", svg, *common)
    check(result.returncode == 0, result.stderr)
    table = json.load(open(rows))
    check(len(table) == 2 * 2 * (1 + 2 * 3), f"{len(table)} rows")
    rates = [row["predicted"]["steps"][0]["tokens_per_second"] for row in table]
    check(rates == sorted(rates, reverse=True), "rows are sorted by predicted tokens/s")
    check(all(rate > 0 for rate in rates), "rates")
    check(any(row["pareto"] for row in table) and not all(row["pareto"] for row in table), "a front")
    memory = {row["on_gpu"]: row["memory"]["cuda:0"] for row in table if row["format"] == "int8" and row["strategy"] != "auto"}
    check(memory["0%"] < memory["25%"] < memory["100%"], f"memory {memory}")
    check(all(row["quality_cost_percent"] > 0.9 for row in table if row["format"] == "int4"), "int4 costs")
    picture = xml.dom.minidom.parse(svg)
    circles = picture.getElementsByTagName("circle")
    check(len(circles) >= len(table), f"{len(circles)} points")
    check(len(result.stdout.splitlines()) >= len(table) + 4, result.stdout)

    front = run("explore", options.model, "--policy", hybrid, "--target", target, "--gpu-experts", "0%,50%", "--pareto", *common)
    check(front.returncode == 0 and "*" in front.stdout, front.stderr)

    for arguments, words in [(["--strategy", "best"], "--strategy: found 'best'"), (["--gpu-experts", "101%"], "--gpu-experts: found '101%'"),
                             (["--format", "int5"], "--format: found 'int5'"), (["--nonsense"], "ktc explore --help")]:
        wrong = run("explore", options.model, "--policy", hybrid, "--target", target, *arguments, *common)
        check(wrong.returncode == 1 and words in wrong.stderr and wrong.stderr.count("\n") == 1, (arguments, wrong.stderr))
    refused = run("explore", options.model, "--policy", hybrid, "--target", target, "--strategy", "frequency", "--gpu-experts", "10%", *common)
    check(refused.returncode == 0 and "no plan: " in refused.stdout and "frequency without counts" in refused.stdout, refused.stdout)

    # measured: a plan for this machine's CPU runs, one for a GPU says that there is none (or runs, where there is one)
    measured = run("explore", options.model, "--policy", cpu, "--measure", "--bench", "16,8", "--json", rows, *common)
    check(measured.returncode == 0, measured.stderr)
    check(json.load(open(rows))[0]["measured"]["decode_tokens_per_second"] > 0, measured.stdout)
    check("the target states no" in measured.stdout, "assumed rates are noted")
    absent = run("explore", options.model, "--policy", hybrid, "--target", target, "--measure", "--bench", "16,8", "--json", rows, *common)
    row = json.load(open(rows))[0]
    check("measured" in row or "not run here" in row["not_measured"], absent.stdout)

    # what probe writes is a target, and has all that it measures
    probed = os.path.join(folder, "probed.yaml")
    result = run("probe", "--emulate-gpu", "-o", probed, "--seconds", "280", *common)
    check(result.returncode == 0, result.stderr)
    text = open(probed).read()
    for key in ["read_gb_per_s", "cache_gb_per_s", "vnni_tops", "read_efficiency", "value_ns", "kernel_us", "product_us", "step_us", "attention_tflops",
                "pcie_gb_per_s", "bf16_tflops", "matrix_efficiency", "attention_efficiency", "column_ns", "prefill_kernel_us",
                "prefill_column_ns", "handoff_us", "handoff_gb_per_s"]:
        check(key in text, (key, text))
    check(all(float(number) > 0 for number in re.findall(r"_\w+: ([\d.e+-]+)$", text, re.M)), text)
    begin = time.monotonic()
    late = run("probe", "--seconds", "1", "-o", os.path.join(folder, "late.yaml"), *common)
    check(late.returncode == 1 and "no end after 1 s" in late.stderr and time.monotonic() - begin < 30, late.stderr)
    check(not os.path.exists(os.path.join(folder, "late.yaml")), "half a target file")
    used = run("explore", options.model, "--policy", hybrid, "--target", probed, *common)
    check(used.returncode == 0, used.stderr)
    dry = run("compile", options.model, "--policy", cpu, "--target", probed, "--dry-run", *common)
    check(dry.returncode == 0 and "predicted (decode at 256 tokens of context)" in dry.stdout and "decode[2]" in dry.stdout, dry.stdout + dry.stderr)

    # auto says what it minimised: the mean of the buckets' times of a token
    chosen = os.path.join(folder, "auto.yaml")
    with open(chosen, "w") as f:
        f.write(POLICY % "cuda:0" + "experts: {strategy: auto, on_gpu: 25%, gpu: {devices: [cuda:0], weights: int8}}\n")
    dry = run("compile", options.model, "--policy", chosen, "--target", target, "--dry-run", *common)
    said = re.search(r"least predicted time of a token in decode \(mean over batch.decode\), (\d+) us", dry.stdout)
    steps = [float(us) / int(rows) for rows, us in re.findall(r"decode\[(\d+)\].* (\d+) us,", dry.stdout)]
    check(said and len(steps) == 2 and abs(sum(steps) / 2 - float(said[1])) < 2, dry.stdout + dry.stderr)
print("tables, pictures, refusals, measurements and a probe")

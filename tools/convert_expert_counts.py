#!/usr/bin/env python3
"""Turns a recording of KTransformers or SGLang into expert statistics for `experts.statistics` of a policy.

    tools/convert_expert_counts.py expert_distribution_recorder_1700000000.pt --top-k 8 -o stats.json

The recording is what /dump_expert_distribution_record writes: a dictionary with `logical_count`, or that tensor alone, of shape
[steps, layers, experts]; layers are all of the model's, dense ones with zeros. Steps are added up. Several recordings of one model
are added up too. Output: {"tokens": N, "layers": {"3": [...]}} (runtime/formats/expert_statistics.h); without --top-k the number of
tokens is unknown and left out. Needs torch to read .pt files, and nothing else does.
"""
import argparse
import json
import sys


class BadRecording(Exception):
    """One line for the user."""


def add_steps(counts):
    """[steps][layers][experts] of whole numbers from 0 -> [layers][experts], checked."""
    if not isinstance(counts, list) or not counts or not isinstance(counts[0], list) or not counts[0] or not isinstance(counts[0][0], list):
        raise BadRecording("logical_count: expected three dimensions [steps, layers, experts]")
    layers, experts = len(counts[0]), len(counts[0][0])
    total = [[0] * experts for _ in range(layers)]
    for step in counts:
        if len(step) != layers or any(not isinstance(row, list) or len(row) != experts for row in step):
            raise BadRecording("logical_count: steps of different shapes")
        for sums, row in zip(total, step):
            for e, count in enumerate(row):
                if isinstance(count, bool) or count != int(count) or count < 0:
                    raise BadRecording(f"logical_count: found {count!r}, expected whole numbers from 0")
                sums[e] += int(count)
    return total


def statistics(recordings, top_k=None):
    """The JSON object for recordings that add_steps returned."""
    first = recordings[0]
    for other in recordings[1:]:
        if len(other) != len(first) or len(other[0]) != len(first[0]):
            raise BadRecording("recordings of different models: "
                               f"{len(first)} layers of {len(first[0])} experts, {len(other)} of {len(other[0])}")
    total = [[sum(values) for values in zip(*rows)] for rows in zip(*recordings)]
    layers = {str(i): row for i, row in enumerate(total) if any(row)}
    if not layers:
        raise BadRecording("no expert was counted in any layer; record while the server answers requests")
    result = {}
    if top_k is not None:
        sums = {sum(row) for row in layers.values()}
        if any(s % top_k for s in sums):
            raise BadRecording(f"--top-k {top_k}: a layer's counts add up to {max(s for s in sums if s % top_k)}, no multiple of it")
        result["tokens"] = max(sums) // top_k
    result["layers"] = layers
    return result


def to_text(result):
    """One line per layer, as the program writes it."""
    head = f'{{"tokens": {result["tokens"]}, "layers": {{\n' if "tokens" in result else '{"layers": {\n'
    rows = ",\n".join(f'  "{layer}": {json.dumps(row)}' for layer, row in result["layers"].items())
    return head + rows + "\n}}\n"


def load(path):
    """logical_count of a .pt file as nested lists. Nothing in the file is executed: weights_only."""
    try:
        import torch
    except ImportError:
        raise BadRecording("reading .pt files needs torch: pip install torch") from None
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise BadRecording(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if isinstance(data, dict):
        if "logical_count" not in data:
            raise BadRecording(f"{path}: found keys {', '.join(map(str, data))}, expected logical_count")
        data = data["logical_count"]
    if not isinstance(data, torch.Tensor):
        raise BadRecording(f"{path}: found {type(data).__name__}, expected a tensor")
    # summed in torch: recordings have a thousand steps
    if data.dim() == 3 and not data.dtype.is_floating_point and data.dtype != torch.bool and bool((data >= 0).all()):
        data = data.to(torch.int64).sum(dim=0, keepdim=True)
    return data.tolist()


def main(argv, reader=load):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", nargs="+", help=".pt files of one model")
    parser.add_argument("--top-k", type=int, help="experts per token of the model (num_experts_per_tok)")
    parser.add_argument("-o", "--output", help="JSON file; default: standard output")
    options = parser.parse_args(argv)
    if options.top_k is not None and options.top_k < 1:
        parser.error("--top-k: at least 1")
    try:
        text = to_text(statistics([add_steps(reader(path)) for path in options.recording], options.top_k))
        if options.output:
            with open(options.output, "w", encoding="ascii") as out:
                out.write(text)
        else:
            sys.stdout.write(text)
    except (BadRecording, OSError) as error:
        print(f"convert_expert_counts: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

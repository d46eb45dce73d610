"""What the Python peers share: arguments, routing as ktc-bench has it, the reference, and the protocol of rounds.

A peer prepares its layers, checks them, prints one JSON line {"ready": ...} and then measures one round per line that it reads
from standard input; every round ends with {"round": N, "done": true}. With "trial" in the first line, so does its first round,
which is not counted. Without --step it measures --rounds rounds and leaves.
Lines of results: {"peer", "variant", "format", "tokens_per_expert", "round", "microseconds"}.
"""

import argparse
import json
import os
import sys
import time

import numpy as np

CASE_SECONDS = 0.008  # a case is measured for at least as long, as in ktc-bench
LONG_SECONDS = 0.04  # waking threads and warming caches is lost in a layer of that length
MOST_ERROR = {"int8": 0.1, "int4": 0.1, "bf16": 0.02}  # rms over rms of the reference; a wrong layout is near 1

# Results go where standard output went; whatever a peer's library prints goes to standard error.
_results = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def emit(**record):
    _results.write(json.dumps(record) + "\n")
    _results.flush()


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    for name in ("experts", "hidden", "intermediate", "top-k"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--tokens", required=True, help="tokens per active expert, as in 1,4,16")
    parser.add_argument("--format", default="int8,int4,bf16", help="of int8, int4, bf16")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--gib", type=float, default=4, help="weights per format to rotate over")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", action="store_true", help="a round per line of standard input")
    parser.add_argument("--peers", default=".", help="folder that build_peers.sh made")
    options = parser.parse_args()
    options.tokens = [int(m) for m in options.tokens.split(",")]
    options.format = options.format.split(",")
    return options


class Routing:
    """tools/ktc/bench_layer.h: every active expert has exactly `per_expert` tokens."""

    def __init__(self, per_expert, options):
        groups = 1
        if per_expert >= 16:
            large = options.hidden * options.intermediate > 4 << 20
            groups = max(1, min(options.experts, 16 if large else 64) // options.top_k)
        self.per_expert, self.groups, self.top_k = per_expert, groups, options.top_k
        self.active, self.tokens = groups * options.top_k, groups * per_expert

    def ids(self):
        """(tokens, top_k) expert ids; add the first expert of a window."""
        return (np.arange(self.tokens)[:, None] % self.groups) * self.top_k + np.arange(self.top_k)[None, :]

    def weights(self):
        return ((1 + (np.arange(self.tokens)[:, None] + np.arange(self.top_k)[None, :]) % 7) / 16).astype(np.float32)


def to_bf16(x):
    """Round to nearest even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def random_matrix(rng, form, rows, columns):
    """float32 weights that the format holds without loss, whether it scales by the row or (int4, int8) by any part of it.

    Codes times a power of two per row; the largest code stands once in every 32 columns, so that a quantiser that takes the
    largest magnitude of a row or of a block finds the same scale.
    """
    if form == "bf16":
        return from_bf16(to_bf16(rng.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)))
    most = 127 if form == "int8" else 7
    codes = rng.integers(-most, most + 1, (rows, columns), np.int8)
    codes[:, ::32] = most
    scales = np.exp2(-np.round(np.log2(most * columns**0.5)) - rng.integers(0, 2, (rows, 1))).astype(np.float32)
    return codes * scales


def reference(x, ids, weights, gate, up, down):
    """One token in float32. gate, up, down: by expert id."""
    out = np.zeros(x.shape[-1], np.float32)
    for expert, weight in zip(ids, weights):
        g, u = gate[expert] @ x, up[expert] @ x
        out += weight * (down[expert] @ (g / (1 + np.exp(-g)) * u))
    return out


def relative_error(found, expected):
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def accept(peer, form, per_expert, error, most=None):
    if not error <= (most or MOST_ERROR[form]):
        emit(peer=peer, format=form, tokens_per_expert=per_expert, failed=f"relative error {error:.4f}")
        sys.exit(1)


def time_layers(run):
    """Seconds of one run(); at least CASE_SECONDS in all, after one that counts only if it is long enough to stand alone."""
    start = time.perf_counter()
    run()
    if time.perf_counter() - start >= LONG_SECONDS:
        return time.perf_counter() - start
    layers, start = 0, time.perf_counter()
    while True:
        run()
        layers += 1
        seconds = time.perf_counter() - start
        if seconds >= CASE_SECONDS:
            return seconds / layers


def rounds(options, cases, trial=None, **about):
    """cases: (fields of the record, function that returns the seconds of a layer).

    `trial`, if any, takes the place of a first round that is not counted (its number is -1).
    """
    emit(ready=True, trial=trial is not None, **about)
    number = 0
    if trial and (not options.step or sys.stdin.readline()):
        trial()
        emit(round=-1, done=True)
    while sys.stdin.readline() if options.step else number < options.rounds:
        for fields, measure in cases:
            emit(**fields, round=number, microseconds=measure() * 1e6)
        emit(round=number, done=True)
        number += 1

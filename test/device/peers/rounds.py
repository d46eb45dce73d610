#!/usr/bin/env python3
"""ktc-bench experts and its peers, in turn, round by round, on the expert layers of three models; one table at the end.

Every engine is a process that prepares and checks its layers, then measures one round per line that it gets (common.py). While
one measures, the others are stopped, so that no one's spinning threads disturb it. The order moves on by one in every round.
Ratios are taken within a round; medians over the rounds are shown. An engine that fails is reported and left out.
"""

import argparse
import json
import os
import pathlib
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

SHAPES = {  # name: experts, hidden, intermediate, top-k
    "qwen3-30b-a3b": (128, 2048, 768, 8),
    "qwen3-next-80b": (512, 2048, 512, 10),
    "deepseek-v3": (256, 7168, 2048, 8),
}
HERE = pathlib.Path(__file__).resolve().parent
PREPARE_SECONDS, ROUND_SECONDS = 150, 60


class Engine:
    def __init__(self, name, command, log, environment=None):
        self.name, self.command, self.log, self.environment = name, command, log, environment
        self.failed, self.about, self.process, self.lines = None, {}, None, queue.Queue()

    def start(self):
        try:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                            start_new_session=True, env={**os.environ, **(self.environment or {})})
        except OSError as error:
            self.failed = str(error)
            return
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
            else:
                self.log.write(line)
        self.lines.put(None)

    def _next(self, deadline):
        try:
            record = self.lines.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            record, self.failed = None, "out of time"
        if record is None:
            self.failed = self.failed or "ended; peers.log says why"
        elif "failed" in record:
            self.failed = f"{record['format']}, {record['tokens_per_expert']} tokens per expert: {record['failed']}"
        return record

    def wait_until_ready(self, deadline):
        if not self.about and not self.failed:
            self.about = self._next(deadline) or {}
            self.pause()

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def pause(self):
        if self.alive():
            os.killpg(self.process.pid, signal.SIGSTOP)

    def round(self):
        """The records of one round."""
        records, deadline = [], time.monotonic() + ROUND_SECONDS
        try:
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except OSError:
            self.failed = "ended"
        while not self.failed:
            record = self._next(deadline)
            if record and record.get("done"):
                break
            if record:
                records.append(record)
        self.pause()
        return [] if self.failed else records

    def end(self):
        if self.alive():
            os.killpg(self.process.pid, signal.SIGCONT)
            if self.failed:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def engines(options, shape, log):
    """(name, command, environment) of every engine for this shape."""
    experts, hidden, intermediate, top_k = shape
    same = ["--experts", experts, "--hidden", hidden, "--intermediate", intermediate, "--top-k", top_k, "--tokens", options.tokens,
            "--gib", options.gib, "--step"]
    peer = [*same, "--format", options.peer_formats, "--peers", options.peers]
    # Weights on huge pages for everyone: ktc and ggml ask for them, the C library does it for the others.
    huge = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.arena_max=1",
            "OPENBLAS_NUM_THREADS": str(options.threads)}
    torch = {**huge, "OMP_NUM_THREADS": str(options.threads), "OMP_PROC_BIND": "true"}
    chosen = options.only.split(",") if options.only else ["ktc", "kt-kernel", "ggml", "torch"]
    found = []
    if "ktc" in chosen:
        flags = ["--format", options.format, "--threads", options.threads, *options.flags]
        found.append(("ktc", [options.bench, "experts", *same, *flags], None))
    if "kt-kernel" in chosen:
        for threads in options.kt_threads.split(","):  # its own queue's thread spins too, so one fewer can be faster
            command = [sys.executable, HERE / "kt_kernel_layer.py", *peer, "--threads", threads]
            found.append((f"kt-kernel {threads}", command, huge))
    if "ggml" in chosen:
        found.append(("ggml", [f"{options.peers}/ggml_layer", *peer, "--threads", options.threads], None))
    if "torch" in chosen:
        found.append(("torch", [sys.executable, HERE / "torch_layer.py", *peer, "--threads", options.threads], torch))
    return [Engine(name, [str(word) for word in command], log, environment) for name, command, environment in found]


def measure(options, name, shape, records, log, deadline):
    """Appends records, each with "model" and "engine" added; returns what to say about failed engines."""
    start = time.monotonic()
    running = engines(options, shape, log)
    try:
        for engine in running:
            engine.start()
            if engine.name == "ktc":  # it asks how much memory is free; the others prepare side by side
                engine.wait_until_ready(start + PREPARE_SECONDS)
        for engine in running:
            engine.wait_until_ready(start + PREPARE_SECONDS)
        for engine in running:
            if engine.about.get("trial"):  # it chooses among its ways, undisturbed
                engine.round()
            records.append({"model": name, "engine": engine.name, **engine.about})
        prepared = time.monotonic()
        done = 0
        for number in range(options.rounds):
            if done and time.monotonic() + (time.monotonic() - prepared) / done > deadline:
                break
            ready = [engine for engine in running if not engine.failed]
            first = number % max(1, len(ready))
            for engine in ready[first:] + ready[:first]:
                records += [{"model": name, "engine": engine.name, **record, "round": number} for record in engine.round()]
            done += 1
    finally:  # a stopped process would stay for ever
        for engine in running:
            engine.end()
    print(f"{name}: prepared in {prepared - start:.0f} s, {done} rounds in {time.monotonic() - prepared:.0f} s", file=sys.stderr)
    return [f"{name}: {engine.name} failed: {engine.failed}" for engine in running if engine.failed]


def table(records, models, baseline):
    """One row per cell: the baseline's time, then each peer's fastest setting: time, setting, ratio within a round."""
    times = {}  # (model, format, tokens): (engine, variant): {round: microseconds}
    peers, order = [], []
    for r in records:
        if "microseconds" not in r:
            continue
        key = (r["model"], r["format"], r["tokens_per_expert"])
        if r["engine"] == baseline and key not in order:
            order.append(key)
        if r["engine"] != baseline and r["peer"] not in peers:
            peers.append(r["peer"])
        times.setdefault(key, {}).setdefault((r["engine"], r.get("peer"), r.get("variant", "")), {})[r["round"]] = r["microseconds"]
    head = f"{'model':<15} {'format':<9} {'tok/ex':>6} {baseline + ' us':>10}"
    lines = [head + "".join(f" | {p + ' us':>12} {'ratio':>6}  {'setting':<16}" for p in peers)]
    for model, form, tokens in sorted(order, key=lambda k: (models.index(k[0]), order.index(k))):
        own = next(iter(v for k, v in times[model, form, tokens].items() if k[0] == baseline))
        line = f"{model:<15} {form:<9} {tokens:>6} {statistics.median(own.values()):>10.0f}"
        for peer in peers:
            cells = [(statistics.median(v.values()), k[2], v) for k, v in times.get((model, form.split("/")[0], tokens), {}).items()
                     if k[1] == peer and k[0] != baseline]
            if not cells:
                line += f" | {'-':>12} {'':>6}  {'':<16}"
                continue
            median, variant, theirs = min(cells, key=lambda cell: cell[0])
            ratio = statistics.median(theirs[n] / own[n] for n in theirs if n in own)
            line += f" | {median:>12.0f} {ratio:>6.2f}  {variant:<16}"
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="ktc-bench")
    parser.add_argument("--peers", required=True, help="folder that build_peers.sh made")
    parser.add_argument("--out", required=True, help="folder for peers.jsonl, peers.txt, peers.log")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kt-threads", help="settings of kt-kernel to try (all cores, and one fewer)")
    parser.add_argument("--tokens", default="1,4,16,64,256")
    parser.add_argument("--format", default="int8,int4/64,int4/row,bf16", help="of ktc; each is put beside the peers' int8, int4, bf16")
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--shape", help="E,H,I,K instead of the models")
    parser.add_argument("--only", help="of ktc,kt-kernel,ggml,torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", default="4")
    parser.add_argument("--seconds", type=float, default=330, help="no round is begun that would end later")
    parser.add_argument("flags", nargs="*", help="after --: for ktc-bench")
    options = parser.parse_args()
    options.kt_threads = options.kt_threads or f"{options.threads},{max(1, options.threads - 1)}"
    options.peer_formats = ",".join(dict.fromkeys(f.split("/")[0] for f in options.format.split(",")))
    shapes = {m: SHAPES[m] for m in options.models.split(",")}
    if options.shape:
        shapes = {"shape": tuple(int(n) for n in options.shape.split(","))}
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    records, failures, start = [], [], time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with open(out / "peers.log", "w") as log:
        for index, (name, shape) in enumerate(shapes.items()):
            left = start + options.seconds - time.monotonic()
            failures += measure(options, name, shape, records, log, time.monotonic() + left / (len(shapes) - index))
            (out / "peers.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    text = table(records, list(shapes), "ktc") + "".join(f + "\n" for f in failures)
    (out / "peers.txt").write_text(text)
    print(text, end="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

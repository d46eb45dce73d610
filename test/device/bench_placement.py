#!/usr/bin/env python3
"""Tokens a second by strategy and share of hot experts, and what moving experts brings; bench_placement.sh calls it.

Plans of a share are measured in rounds, each plan once in every round, in turns that change direction, for a machine's rates move
within minutes; a cell has the median of its rounds. Statistics come from a plan without hot experts. The share of pairs that a set of hot experts serves follows from recorded counts, so
that static strategies need no counting of their own; for experts that move, ktc-run says it."""
import argparse
import json
import os
import shutil
import statistics as stats
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
STRATEGIES = ("random", "uniform", "front-loading", "frequency", "auto", "moving")
POLICY = """version: 1
rules:
  - match: {{class: RoutedExperts}}
    place: {{device: cpu, weights: {weights}}}
  - match: {{class: "*"}}
    place: {{device: cuda:0, weights: native}}
kv_cache: {{dtype: bf16, tokens: 4096, sequences: 1, page: 16}}
batch: {{decode: [1], chunk: 512}}
{experts}"""
HOT = """experts:
  strategy: {strategy}
  on_gpu: {share}%
  gpu: {{devices: [cuda:0], weights: {weights}}}
"""
FORMATS = {"int4": "int4, group: 64", "int8": "int8"}


class Bench:
    def __init__(self, options):
        self.o = options
        self.folder = tempfile.mkdtemp()

    def tool(self, name, *arguments):
        done = subprocess.run([os.path.join(self.o.bin, name), *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            sys.exit(f"{name} {' '.join(map(str, arguments))}\n{done.stderr[-2000:]}")
        return done

    def plan(self, name, weights, experts, topics=0):
        """Compiles a plan; weights: the experts' format; experts: the policy's last key."""
        policy, plan = os.path.join(self.folder, name + ".yaml"), os.path.join(self.folder, name + ".ktp")
        with open(policy, "w", encoding="utf-8") as f:
            f.write(POLICY.format(weights=FORMATS[weights], experts=experts))
        extra = ["--topics", topics] if topics else []
        self.tool("ktc", "compile", self.o.model, "--random-weights", "--alias-layers", self.o.alias, "--router-zipf", self.o.zipf, *extra,
                  "--policy", policy, "--target", self.o.target, "-o", plan)
        return plan

    def run(self, plan, *flags, repeat=None, new=None):
        done = self.tool("ktc-run", plan, "--bench", f"{self.o.prompt},{new or self.o.new}", "--repeat", repeat or self.o.repeat, "--temperature", 1,
                         "--seed", 1, "--json", *flags, *self.o.run_flags)
        return json.loads(done.stdout)

    def remove(self, plan):
        shutil.rmtree(plan)

    def hot_ids(self, plan):
        """Model layer -> hot expert ids."""
        with open(os.path.join(plan, "report.json"), encoding="utf-8") as f:
            return json.load(f)["hot_experts"]

    def counts(self, plan, name, *flags, repeat):
        path = os.path.join(self.folder, name + ".json")
        result = self.run(plan, "--record-experts", path, *flags, repeat=repeat)
        return path, read_counts(path), result


def hit_rate(counts, hot):
    """counts: layer -> list; hot: layer -> ids."""
    pairs = sum(sum(row) for row in counts.values())
    return sum(counts[layer][i] for layer, ids in hot.items() for i in ids) / pairs


def most_frequent(counts, share):
    """The hot sets of strategy frequency, of these counts."""
    pairs = sorted(((-count, int(layer), i) for layer, row in counts.items() for i, count in enumerate(row)))
    hot = {}
    for _, layer, i in pairs[: int(share / 100 * len(pairs) + 1e-6)]:
        hot.setdefault(str(layer), []).append(i)
    return hot


def read_counts(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)["layers"]


def speed(result):
    return result["decode_tokens_per_second"]


def measure_share(bench, share, counts, path):
    """Rows of one share: every strategy's plan, measured in rounds."""
    weights, statistics = bench.o.format, f"  statistics: {path}\n"
    rows = []
    for strategy in bench.o.strategies if share < 100 else ("uniform",):
        text = HOT.format(strategy="uniform" if strategy == "moving" else strategy, share=share, weights=FORMATS[weights])
        if strategy in ("frequency", "auto"):  # the others are what one has without counts
            text += statistics
        if strategy == "moving":
            text += f"  update: {{every_tokens: {bench.o.every}}}\n"
        plan = bench.plan(f"{strategy}-{share}", weights, text)
        rows.append({"share": share, "strategy": strategy, "plan": plan, "rounds": [], "hit_rate": hit_rate(counts, bench.hot_ids(plan))})
    for number in range(bench.o.rounds):
        for row in rows if number % 2 == 0 else rows[::-1]:
            result = bench.run(row["plan"], new=2 * bench.o.new if row["strategy"] == "moving" else None)
            row["rounds"].append(speed(result))
            if row["strategy"] == "moving":
                row["hit_rate"] = result["runs"].get("hit_rate", [0])[-1]
                row["moves"] = result["statistics"]["moved_experts"]["moves"]
    for row in rows:
        bench.remove(row.pop("plan"))
        row["tokens_per_second"] = stats.median(row["rounds"])
    return rows if share < 100 else [dict(rows[0], strategy=s) for s in bench.o.strategies]


def auto_over_static(rows):
    """The static strategy of the best median, and auto over it: of every round."""
    static = [r for r in rows if r["strategy"] not in ("auto", "moving")]
    autos = [r for r in rows if r["strategy"] == "auto"]
    if not static or not autos:
        return None
    best = max(static, key=lambda r: r["tokens_per_second"])
    return best["strategy"], [a / b for a, b in zip(autos[0]["rounds"], best["rounds"])]


def table(bench, out):
    """Shares x strategies on one kind of text."""
    cold = bench.plan("cold", bench.o.format, "")
    path, counts, result = bench.counts(cold, "mixture", repeat=bench.o.repeat)
    rows = [{"share": 0, "strategy": s, "tokens_per_second": speed(result), "hit_rate": 0, "rounds": [speed(result)]} for s in bench.o.strategies]
    for share in bench.o.shares:
        rows += measure_share(bench, share, counts, path)
        print(f"  {share} %: " + "; ".join(f"{r['strategy']} " + " ".join(f"{v:.1f}" for v in r["rounds"]) for r in rows if r["share"] == share), flush=True)
    out["table"] = rows
    at = {(r["share"], r["strategy"]): r for r in rows}
    shares = sorted({r["share"] for r in rows})
    print(f"decode tokens/s (share of pairs that hot experts serve), Zipf exponent {bench.o.zipf}, statistics of the same kind of text, "
          f"medians of {bench.o.rounds} rounds")
    print(f"{'on_gpu':<15}" + "".join(f"{s:>15} %" for s in shares))
    for strategy in bench.o.strategies:
        print(f"{strategy:<15}" + "".join(f"{at[s, strategy]['tokens_per_second']:>8.1f} ({at[s, strategy]['hit_rate']:.3f})" for s in shares))
    for share in shares:
        compared = auto_over_static([r for r in rows if r["share"] == share])
        if compared and 0 < share < 100:
            name, ratios = compared
            out.setdefault("auto_over_static", {})[str(share)] = {"best": name, "ratios": ratios}
            print(f"{share} %: auto over the best static strategy ({name}): {stats.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return path


def stationary(bench, out, statistics):
    """What updates cost where nothing changes: static frequency against the same with updates, in turn."""
    share, weights = bench.o.topic_share, bench.o.format
    text = HOT.format(strategy="frequency", share=share, weights=FORMATS[weights]) + f"  statistics: {statistics}\n"
    still, moving = bench.plan("still", weights, text), bench.plan("may-move", weights, text + f"  update: {{every_tokens: {bench.o.every}}}\n")
    ratios = []
    for _ in range(bench.o.rounds):
        a, b = bench.run(still, new=2 * bench.o.new), bench.run(moving, new=2 * bench.o.new)
        ratios.append(speed(b) / speed(a))
    out["stationary"] = {"share": share, "ratios": ratios, "moves": b["statistics"]["moved_experts"]["moves"]}
    print(f"\nstationary text, {share} % frequency: with updates over without {min(ratios):.3f} to {max(ratios):.3f}, "
          f"{b['statistics']['moved_experts']['moves']} experts moved")


def topics(bench, out):
    """Texts of changing topics; statistics of their mixture."""
    n, share, weights = bench.o.topics, bench.o.topic_share, bench.o.topic_format
    cold = bench.plan("topics-cold", weights, "", n)
    path, mixture, _ = bench.counts(cold, "topics", "--topics", n, repeat=n)
    text = HOT.format(strategy="frequency", share=share, weights=FORMATS[weights]) + f"  statistics: {path}\n"
    still = bench.plan("topics-still", weights, text, n)
    moving = bench.plan("topics-moving", weights, text + f"  update: {{every_tokens: {bench.o.every}}}\n", n)
    new = bench.o.topic_new
    begin, ratios = time.time(), []
    for _ in range(bench.o.topic_rounds):
        a, b = bench.run(still, "--topics", n, repeat=n, new=new), bench.run(moving, "--topics", n, repeat=n, new=new)
        ratios.append(speed(b) / speed(a))
    seconds = time.time() - begin
    oracle, static = [], []
    for topic in range(min(n, bench.o.oracles)):
        _, counts, _ = bench.counts(cold, f"topic-{topic}", "--topics", f"{n}:{topic}", repeat=1)
        oracle.append(hit_rate(counts, most_frequent(counts, share)))
        static.append(hit_rate(counts, bench.hot_ids(still)))
    mean = lambda values: sum(values) / len(values)
    rates = b["runs"]["hit_rate"]
    out["topics"] = {"topics": n, "share": share, "static": {"tokens_per_second": speed(a), "hit_rate": mean(static)},
                     "moving": {"tokens_per_second": speed(b), "hit_rate": mean(rates), "moves": b["statistics"]["moved_experts"]["moves"]},
                     "oracle_hit_rate": mean(oracle), "mixture_hit_rate": hit_rate(mixture, bench.hot_ids(still)), "ratios": ratios, "hit_rates": rates}
    print(f"\n{n} topics in turn, {bench.o.prompt} and {new} tokens each, {weights} experts, {share} % hot: static frequency {speed(a):.1f} tokens/s, hit rate {mean(static):.3f}; "
          f"moving {speed(b):.1f} ({stats.median(ratios):.2f} times), hit rate {mean(rates):.3f}, of the oracle of each topic "
          f"({mean(oracle):.3f}) {mean(rates) / mean(oracle):.2f}; {b['statistics']['moved_experts']['moves']} experts moved; {seconds:.0f} s")


def svg(rows, title):
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
    width, height, left, right, top, bottom = 760, 420, 60, 170, 40, 50
    most = max(r["tokens_per_second"] for r in rows) * 1.1
    x = lambda share: left + share / 100 * (width - left - right)
    y = lambda value: height - bottom - value / most * (height - top - bottom)
    text = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>', f'<text x="{left}" y="22">{title}</text>']
    step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 10**6) if most / s < 9)
    for value in range(0, int(most) + 1, step):
        text.append(f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="#ddd"/><text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for share in sorted({r["share"] for r in rows}):
        text.append(f'<text x="{x(share):.1f}" y="{height - bottom + 18}" text-anchor="middle">{share} %</text>')
    text.append(f'<text x="{x(50):.1f}" y="{height - 12}" text-anchor="middle">experts on the GPU</text>')
    text.append(f'<text transform="translate(16 {height / 2}) rotate(-90)" text-anchor="middle">tokens/s, measured</text>')
    for i, strategy in enumerate(s for s in STRATEGIES if any(r["strategy"] == s for r in rows)):
        points = sorted((r["share"], r["tokens_per_second"]) for r in rows if r["strategy"] == strategy)
        path = "L".join(f"{x(s):.1f} {y(v):.1f}" for s, v in points)
        text.append(f'<path d="M{path}" fill="none" stroke="{colours[i]}" stroke-width="1.5"/>')
        text += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3" fill="{colours[i]}"/>' for s, v in points]
        text.append(f'<path d="M{width - right + 16} {top + 18 * i}h24" stroke="{colours[i]}" stroke-width="1.5"/>'
                    f'<text x="{width - right + 46}" y="{top + 18 * i + 4}">{strategy}</text>')
    return "\n".join(text + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "test", "shapes", "qwen3-next-like"))
    parser.add_argument("--target", default=os.path.join(ROOT, "placement", "targets", "emerald-rapids-16-cores-h200.yaml"))
    parser.add_argument("--alias", type=int, default=4, help="layers with bytes of their own")
    parser.add_argument("--rounds", type=int, default=3, help="of every share of the table, and of the stationary text")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES), help="of the table")
    parser.add_argument("--zipf", type=float, default=0.6, help="exponent of the routers")
    parser.add_argument("--shares", type=int, nargs="+", default=[10, 30, 50, 100])
    parser.add_argument("--format", choices=FORMATS, default="int4", help="of experts, but for the topics")
    parser.add_argument("--topic-format", choices=FORMATS, default="int8")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--every", type=int, default=128, help="update.every_tokens")
    parser.add_argument("--topics", type=int, default=8)
    parser.add_argument("--topic-share", type=int, default=10)
    parser.add_argument("--topic-new", type=int, default=512, help="tokens generated for each topic")
    parser.add_argument("--topic-rounds", type=int, default=1, help="static and moving in turn, so many times; the ratio is their median")
    parser.add_argument("--oracles", type=int, default=3, help="topics whose own statistics are recorded")
    parser.add_argument("--parts", nargs="+", choices=("table", "stationary", "topics"), default=["table", "stationary", "topics"])
    parser.add_argument("run_flags", nargs="*", help="behind --: for every ktc-run, such as -- --emulate-gpu")
    options = parser.parse_args()
    bench, out = Bench(options), {"zipf": options.zipf, "model": os.path.basename(options.model)}
    statistics = None
    if "table" in options.parts:
        statistics = table(bench, out)
        with open(os.path.join(options.out, "placement.svg"), "w", encoding="utf-8") as f:
            f.write(svg(out["table"], f"Decode by strategy and share of hot experts, {out['model']}, Zipf exponent {options.zipf}"))
    if "stationary" in options.parts:
        statistics = statistics or bench.counts(bench.plan("cold", bench.o.format, ""), "mixture", repeat=options.repeat)[0]
        stationary(bench, out, statistics)
    if "topics" in options.parts:
        topics(bench, out)
    with open(os.path.join(options.out, "placement.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()

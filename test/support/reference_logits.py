"""Logits that --logits wrote, against those of a checkpoint's reference."""
import math

from safetensors_file import read_tensors


def log_sum_exp(row):
    best = max(row)
    return best + math.log(math.fsum(math.exp(x - best) for x in row))


def worst_differences(out, path, late):
    """Largest differences, each as a share of its row's range: of the largest logits, of log-sum-exp, of whole last rows; and the
    smallest of these ranges.

    out: what --logits wrote for the reference's input_ids; path: reference.safetensors; late: the late experts of a token."""
    names = [f"{name}.defer_{late}" for name in ("top_ids", "top_values", "logsumexp", "last_logits")]
    reference = read_tensors(path, (*names, "input_ids"))
    top_ids, top_values, sums, last = (reference[name] for name in names)
    rows, tokens = reference["input_ids"].shape
    logits = read_tensors(out)["logits"]
    if list(logits.shape[:2]) != [rows, tokens]:
        raise AssertionError(f"logits of {logits.shape[:2]} tokens, the reference has {[rows, tokens]}")
    worst, least = {"top": 0.0, "logsumexp": 0.0, "last": 0.0}, math.inf
    for r in range(rows):
        for t in range(tokens):
            row = logits.row(r, t)
            span = max(row) - min(row)
            least = min(least, span)
            for i, value in zip(top_ids.row(r, t), top_values.row(r, t)):
                worst["top"] = max(worst["top"], abs(row[i] - value) / span)
            worst["logsumexp"] = max(worst["logsumexp"], abs(log_sum_exp(row) - sums.row(r)[t]) / span)
        row = logits.row(r, tokens - 1)
        for found, expected in zip(row, last.row(r)):
            worst["last"] = max(worst["last"], abs(found - expected) / (max(row) - min(row)))
    return worst, least

#!/usr/bin/env python3
"""No #include crosses an edge that cmake/KtcEdges.cmake does not list.

CMake refuses forbidden links; this test refuses forbidden includes, which would compile because all of our headers are
under one root. Prints one line per violation and exits 1.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# folder (longest match wins) -> target of the edge table
FOLDERS = {
    "runtime/base": "base", "runtime/formats": "formats", "runtime/safetensors": "safetensors", "runtime/plan": "plan",
    "runtime/weights": "weights", "runtime/kernels/cpu": "kernels_cpu", "runtime/kernels/cuda": "kernels_cuda",
    "runtime/device": "device", "runtime/exec": "exec", "runtime/text": "text", "runtime/serve": "serve",
    "models": "models", "placement": "placement", "dialects/kt": "dialect_kt", "compiler/weights": "compiler_weights",
    "compiler": "compiler",
}
# headers of external libraries -> name in the edge table
EXTERNAL = [
    (r"fmt/", "fmt"), (r"nlohmann/", "json"), (r"yaml-cpp/", "yaml"), (r"mlir/|llvm/", "mlir"), (r"flatbuffers/", "flatbuffers"),
    (r"xxhash\.h", "xxhash"), (r"tbb/|oneapi/", "tbb"), (r"pcre2\.h", "pcre2"), (r"utf8proc\.h", "utf8proc"), (r"CLI/", "cli"),
    (r"cuda|cublas", "cuda"), (r"flashinfer/", "flashinfer"), (r"plan_generated\.h", "plan"),
]
# what a target hands on to its users: plan's structs are FlatBuffers structs, base brings header-only fmt
HANDED_ON = {"base": {"fmt"}, "plan": {"flatbuffers"}}


def edges():
    with open(os.path.join(ROOT, "cmake/KtcEdges.cmake"), encoding="utf-8") as f:
        text = f.read()
    table = {m[0]: set(m[1].split()) for m in re.findall(r"^ktc_edge\((\S+)\s*([^)]*)\)", text, re.M)}
    return {t: uses | set().union(*(HANDED_ON.get(u, set()) for u in uses)) for t, uses in table.items()}


def target_of(path):
    best = max((folder for folder in FOLDERS if path == folder or path.startswith(folder + "/")), key=len, default=None)
    return FOLDERS.get(best)


def violations(allowed):
    for top in ("runtime", "models", "placement", "dialects", "compiler"):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for name in files:
                if not name.endswith((".h", ".cpp", ".cu", ".cuh", ".inc")):
                    continue
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                target = target_of(path)
                if target is None:
                    yield f"{path}: lies in no folder of the edge table; add the folder to test/edges_test.py"
                    continue
                with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                    for number, line in enumerate(f, 1):
                        m = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
                        if not m:
                            continue
                        used = target_of(m[1]) or next((n for p, n in EXTERNAL if re.match(p, m[1])), None)
                        if used is None or used == target or used in allowed[target]:
                            continue
                        yield f"{path}:{number}: '{target}' includes {m[1]} of '{used}'; allowed: {' '.join(sorted(allowed[target]))}"


def main():
    allowed = edges()
    missing = set(FOLDERS.values()) - set(allowed)
    if missing:
        print("no edges for", ", ".join(sorted(missing)))
        return 1
    found = list(violations(allowed))
    print("\n".join(found) if found else "every include follows an edge")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

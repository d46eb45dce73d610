#!/usr/bin/env python3
"""Turns the CUDA kernels into C++ for the simulator: translate.py SOURCE_ROOT OUT_FOLDER

Functions that wrap an instruction get a body that calls the simulator, launches become calls, dynamic shared memory becomes a
pointer. Assembly that is left over is an error: teach BODIES its function.
"""
import os
import re
import sys

FOLDER = "runtime/kernels/cuda/"
# function -> its body; the parameters keep their names
BODIES = {
    "shared_at": "return simulator::shared_address(p);",
    "shared_address": "return simulator::shared_address(p);",
    "copy16": "simulator::copy16(to, from, there);",
    "copy_once": "simulator::copy16(to, from, bytes != 0);",
    "read_once": "return 0;",
    "copy_async": "simulator::copy16(to, from, bytes != 0);",
    "commit_copies": "",
    "wait_copies": "",
    "load_fragments": "simulator::load_matrix(r, from, false);",
    "load_fragments_turned": "simulator::load_matrix(r, from, true);",
    "load_matrix": "simulator::load_matrix(r, from, false);",
    "group_operand": "return address >> 4;",
    "multiply_groups": "simulator::multiply_groups(c, a, b);",
    "show_to_groups": "",
    "begin_groups": "",
    "commit_groups": "",
    "wait_groups": "",
    "fetch_piece": "",
    "store_cell": "using Wide = long long __attribute__((vector_size(16))); Wide x; std::memcpy(&x, &v, 16); "
                  "__atomic_thread_fence(__ATOMIC_RELEASE); *static_cast<volatile Wide*>(address) = x;",
    "load_cell": "uint4 v; using Wide = long long __attribute__((vector_size(16))); const Wide x = *static_cast<const volatile Wide*>(address); "
                 "std::memcpy(&v, &x, 16); return v;",
}
# `multiply` has two shapes
MULTIPLY = {"b1": "simulator::multiply(c, a, b0, b1);", "(&b)[2]": "simulator::multiply(c, a, b[0], b[1]);"}


def matching(text, start, opening, closing):
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i
    raise ValueError("no matching " + closing)


def replace_bodies(text):
    for m in reversed(list(re.finditer(r"__device__ inline [^;{}()]*?\b(\w+)\(", text))):
        name = m[1]
        parameters_end = matching(text, m.end() - 1, "(", ")")
        body_start = text.index("{", parameters_end)
        body = BODIES.get(name)
        if name == "multiply":
            parameters = text[m.end():parameters_end]
            body = next((b for key, b in MULTIPLY.items() if key in parameters), None)
        if body is None:
            continue
        text = text[:body_start] + "{ " + body + " }" + text[matching(text, body_start, "{", "}") + 1:]
    return text


def split_arguments(text):
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    return parts + [part.strip()]


def replace_launches(text):
    while "<<<" in text:
        at = text.index("<<<")
        end = text.index(">>>", at)
        start, depth = at, 0
        while text[start - 1] in "<>_:" or text[start - 1].isalnum() or depth > 0:
            start -= 1
            depth += (text[start] == ">") - (text[start] == "<")
        configuration = split_arguments(text[at + 3:end])
        close = matching(text, end + 3, "(", ")")
        call = "launch(%s, %s, stream, %s)" % (text[start:at], ", ".join(configuration[:3]), text[end + 4:close])
        text = text[:start] + call + text[close + 1:]
    return text


def translate(name, text):
    text = replace_bodies(text)
    text = re.sub(r'asm volatile\("(?:prefetch|cp\.async)[^;]*;"[^;]*\);', "", text)
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?([\w:]+) (\w+)\[\];",
                  r"\1* const \2 = reinterpret_cast<\1*>(simulator::dynamic_shared);", text)
    text = replace_launches(text)
    text = text.replace("cudaGetLastError()", "cudaSuccess").replace("cudaPeekAtLastError()", "cudaSuccess")
    text = text.replace("cudaGetDevice(&device)", "cudaSuccess")
    text = text.replace("cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)",
                        "(most = static_cast<int>(simulator::kMostShared), cudaSuccess)")
    text = re.sub(r'#include "%s(\w+)\.cuh"' % FOLDER, r'#include "\1.cuh"', text)
    left = re.search(r"\basm\b", text)
    if left:
        line = text.count("\n", 0, left.start()) + 1
        sys.exit(f"translate.py: {FOLDER}{name}: assembly that the simulator does not know, near line {line}; teach BODIES its function")
    return '#include "test/kernels_cuda/simulator/simulator.h"\n' + text


def main():
    root, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    sources = {}
    for name in sorted(os.listdir(os.path.join(root, FOLDER))):
        if not name.endswith((".cu", ".cuh", ".h")):
            continue
        with open(os.path.join(root, FOLDER, name), encoding="utf-8") as f:
            text = f.read()
        if not name.endswith(".h") or '.cuh"' in text:  # of plain headers those alone that include kernels
            sources[name] = text
    for name, text in sources.items():
        if name == "dependent_launch.cuh":
            text = "#pragma once\n"  # the simulator has its own
        else:
            text = translate(name, text)
            for header in sources:
                if header.endswith(".h"):
                    text = text.replace('#include "%s%s"' % (FOLDER, header), '#include "%s"' % header)
        target = os.path.join(out, name[:-3] + ".cpp" if name.endswith(".cu") else name)
        with open(target, "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    main()

"""Lists that belong together: one pass is one def, one .cpp and one lit file; ops have examples; diagnostics have tests.

pass_lists.py SOURCE_TREE; exit code 1 with one line per difference.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
problems = []

defs = dict(re.findall(r'^def (\w+) : Kt_Pass<"kt-([\w-]+)">', (root / "compiler/passes/Passes.td").read_text(), re.M))
if not defs:
    problems.append("compiler/passes/Passes.td: no pass found; the pattern of this test is out of date")
sources = {p.stem: p.read_text() for p in (root / "compiler/passes").glob("*.cpp")}
tests = {p.stem: p.read_text() for p in (root / "lit-tests/passes").glob("*.mlir")}
cmake = (root / "compiler/CMakeLists.txt").read_text()

for name, flag in defs.items():
    kebab = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
    if kebab != flag:
        problems.append(f"Passes.td: def {name} has the flag kt-{flag}, expected kt-{kebab}")
    if name not in sources:
        problems.append(f"pass {name} has no compiler/passes/{name}.cpp")
    elif not sources[name].startswith(f"// kt-{flag}\n"):
        problems.append(f"compiler/passes/{name}.cpp: expected the first line to be // kt-{flag}")
    if f"passes/{name}.cpp" not in cmake:
        problems.append(f"compiler/CMakeLists.txt does not build passes/{name}.cpp")
    if flag not in tests:
        problems.append(f"pass kt-{flag} has no lit-tests/passes/{flag}.mlir")
    elif f"--kt-{flag}" not in tests[flag]:
        problems.append(f"lit-tests/passes/{flag}.mlir does not run --kt-{flag}")
for stem, text in sources.items():
    if "GEN_PASS_DEF" in text and stem not in defs:
        problems.append(f"compiler/passes/{stem}.cpp implements a pass that Passes.td does not define")
for stem in tests:
    if not any(stem == flag or stem.startswith(flag + "-") for flag in defs.values()):
        problems.append(f"lit-tests/passes/{stem}.mlir is for no pass of Passes.td")

# every op of the dialect goes through text in lit-tests/dialect/ops.mlir, and is described with an example
ops_test = (root / "lit-tests/dialect/ops.mlir").read_text()
for path in (root / "dialects/kt/KtSymbols.td", root / "dialects/kt/KtSteps.td"):
    for body in re.split(r"^def ", path.read_text(), flags=re.M)[1:]:
        op = re.match(r'Kt_\w+Op : (?:Kt_\w+Op<|Op<Kt_Dialect, )"(\w+)"', body)
        if not op:
            continue
        if f"kt.{op.group(1)} " not in ops_test:
            problems.append(f"lit-tests/dialect/ops.mlir has no kt.{op.group(1)}")
        if f"kt.{op.group(1)} " not in body or "let summary" not in body:
            problems.append(f"{path.name}: kt.{op.group(1)} has no summary or no example")

# every diagnostic of the dialect and the passes is in some test: its first literal words are looked up
corpus = "".join(p.read_text() for p in (root / "lit-tests").rglob("*") if p.suffix in (".mlir", ".test"))
for folder in ("dialects/kt", "compiler/passes"):
    for path in sorted((root / folder).glob("*.cpp")):
        for match in re.finditer(r'emit(?:Op)?Error\(\s*"([^"]+)"|emit(?:Op)?Error\(\)\s*<<\s*"([^"]+)"', path.read_text()):
            words = (match.group(1) or match.group(2)).replace("\\", "")
            if words.strip() and words.strip() not in corpus:
                line = path.read_text()[: match.start()].count("\n") + 1
                problems.append(f"{path.relative_to(root)}:{line}: no lit test expects the diagnostic \"{words}\"")

print("\n".join(problems))
sys.exit(1 if problems else 0)

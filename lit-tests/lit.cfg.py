# ctest -R lit runs this folder: lit -D bin=… -D tools=… -D source=… -D out=… lit-tests
# bin: our tools; tools: FileCheck and not; source: the source tree; out: where tests write
import lit.formats

config.name = "ktc"
config.test_format = lit.formats.ShTest(True)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_exec_root = lit_config.params["out"]
config.environment["PATH"] = ":".join([lit_config.params["bin"], lit_config.params["tools"], "/usr/bin", "/bin"])
config.substitutions.append(("%source", lit_config.params["source"]))
policies, targets = ("%s/placement/%s" % (lit_config.params["source"], folder) for folder in ("policies", "targets"))
config.substitutions.append(("%exact", f"policy={policies}/exact.yaml target={targets}/laptop-8-cores-32gb.yaml"))

#!/usr/bin/env python3
"""Compiles a checkpoint in exact mode for the tests that follow; CTest runs it once as their fixture."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, parse_arguments  # noqa: E402

parse_arguments(__doc__)
policy = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "policies", "exact.yaml")
sys.exit(subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy", policy, "-o", Setting.plan],
                        check=False).returncode)

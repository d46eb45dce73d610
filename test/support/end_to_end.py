"""What the end-to-end tests share: the tools, a plan compiled by the test before, and skipping.

Every script is called as  SCRIPT --bin BIN --plan PLAN --model MODEL  and exits with 77, which CTest shows as skipped, where
the checkpoint is not on this machine.
"""
import argparse
import json
import os
import subprocess
import sys
import unittest

SKIPPED = 77


class Setting:
    bin = plan = model = None

    @classmethod
    def reference(cls, name):
        return os.path.join(cls.model, "reference", name)

    @classmethod
    def reference_json(cls):
        with open(cls.reference("reference.json"), encoding="utf-8") as f:
            return json.load(f)


def parse_arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bin", required=True, help="folder of the built tools")
    parser.add_argument("--plan", required=True, help="the compiled plan")
    parser.add_argument("--model", required=True, help="the checkpoint's folder, with reference/")
    parser.parse_args(namespace=Setting)
    if not os.path.isdir(Setting.model):
        print(f"skipped: no checkpoint at {Setting.model}; set the CMake cache variable KTC_CHECKPOINTS to its folder")
        sys.exit(SKIPPED)


def main(description):
    parse_arguments(description)
    unittest.main(module="__main__", argv=[sys.argv[0]], verbosity=2)


def ktc_run(*arguments, plan=None, timeout=280, **options):
    """A finished ktc-run; text where no option says otherwise."""
    options = {"capture_output": True, "text": True, "encoding": "utf-8", **options}
    command = [os.path.join(Setting.bin, "ktc-run"), plan or Setting.plan, *arguments]
    return subprocess.run(command, timeout=timeout, check=False, **options)


def ktc_run_json(*arguments, plan=None):
    """The objects that --json printed, one a line; fails the test with the program's own words."""
    done = ktc_run(*arguments, "--json", plan=plan)
    if done.returncode != 0:
        raise AssertionError(f"ktc-run {' '.join(arguments)}: exit {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]

#!/usr/bin/env python3
"""ktc-run as people meet it: errors on one line with their exit status, Ctrl-C, closed pipes, chat, bench."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, ktc_run_json, main  # noqa: E402
from safetensors_file import Tensor, write_tensors  # noqa: E402


class Errors(unittest.TestCase):
    def failure(self, *arguments, plan=None):
        """The one line of a failure, within two seconds and without output."""
        start = time.monotonic()
        done = ktc_run(*arguments, plan=plan)
        self.assertLess(time.monotonic() - start, 2)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        line = done.stderr.splitlines()[-1]
        self.assertTrue(line.startswith("ktc-run: "), line)
        self.assertEqual(sum(l.startswith("ktc-run: ") for l in done.stderr.splitlines()), 1)
        return line

    def test_flags(self):
        self.assertEqual(self.failure("--prompt", "x", "--temprature", "1"),
                         "ktc-run: --temprature: unknown option; ktc-run --help lists all")
        self.assertEqual(self.failure("--prompt", "x", "--temperature", "-1", "--json"),
                         "ktc-run: --temperature: found -1, expected a finite number of at least 0")
        self.assertIn("nothing to do", self.failure())

    def test_what_the_plan_leaves_open(self):
        dump = subprocess.run([os.path.join(Setting.bin, "ktc-plan"), "dump", Setting.plan], capture_output=True, text=True, check=True)
        self.assertEqual([line for line in dump.stdout.splitlines() if line.startswith("choice ")],
                         ['choice "isa" best, scalar, avx2, avx512, avx512_vnni, amx', 'choice "sampling" host'])
        for flag, option in (("--handoff", "doorbell"), ("--products", "own"), ("--update", "off")):
            self.assertEqual(self.failure("--prompt", "x", flag, option),
                             f"ktc-run: {flag}: the plan leaves nothing to choose there: found {option}; leave the flag out; "
                             "ktc-plan dump lists the plan's choices")
        (plain,), (host,) = (ktc_run_json("--prompt", "In the", "--max-tokens", "4", "--temperature", "0", *flags)
                             for flags in ((), ("--host-sampling", "--isa", "best")))
        self.assertEqual(plain["ids"], host["ids"])

    def test_prompts(self):
        self.assertEqual(self.failure("--prompt", ""), "ktc-run: --prompt: empty prompt: found 0 tokens, expected at least 1")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "long")
            with open(path, "w", encoding="utf-8") as f:
                f.write("word " * 200000)
            self.assertRegex(self.failure("--prompt-file", path),
                             r"--prompt-file .*long: longer than the KV cache: found \d+ tokens, expected at most \d+; "
                             r"shorten it, or compile with a larger kv_cache.tokens in the policy$")
            self.assertRegex(self.failure("--perplexity", path, "--window", "1000000000"),
                             r"--window: longer than the KV cache: found 1000000000, expected at most \d+;")
        self.assertEqual(self.failure("--prompt-file", "/nonexistent"),
                         "ktc-run: --prompt-file /nonexistent: cannot read: found No such file or directory, expected a text file")
        self.assertRegex(self.failure("--bench", "1000000000,5"),
                         r"--bench: longer than the KV cache: found 1000000000 \+ 5 tokens, expected at most \d+;")

    def test_ids(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ids.safetensors")
            write_tensors(path, {"good": Tensor("I32", [1, 2], [1, 2]), "bad": Tensor("I32", [1, 2], [1, 2000000000]),
                                 "short": Tensor("I32", [2, 1], [1, 2])})
            self.assertIn("no such tensor: found bad, good, short, expected absent",
                          self.failure("--perplexity", path + ":absent"))
            self.assertRegex(self.failure("--perplexity", path + ":bad"),
                             r"token id outside the vocabulary: found 2000000000 in row 0, column 1, expected 0 to \d+$")
            self.assertIn("found rows of 1 id, expected at least 2", self.failure("--perplexity", path + ":short"))
            self.assertNotEqual(self.failure("--logits", os.path.join(folder, "no", "x.safetensors"), "--ids", path + ":good"),
                                "")

    def test_plan(self):
        self.failure("--prompt", "x", plan="/nonexistent.ktp")
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "copy.ktp")
            shutil.copytree(Setting.plan, copy)
            weights = next(f for f in sorted(os.listdir(copy)) if f.endswith(".weights"))
            os.truncate(os.path.join(copy, weights), 4096)
            self.assertIn(weights, self.failure("--prompt", "x", plan=copy))
            os.remove(os.path.join(copy, weights))
            self.assertIn(weights, self.failure("--prompt", "x", plan=copy))
            with open(os.path.join(copy, "plan.ktp"), "r+b") as f:
                f.seek(200)
                byte = f.read(1)
                f.seek(200)
                f.write(bytes([byte[0] ^ 1]))
            self.failure("--prompt", "x", plan=copy)

    def test_help_says_everything(self):
        done = subprocess.run([os.path.join(Setting.bin, "ktc-run"), "--help"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertIn("usage: ktc-run PLAN", done.stdout)
        self.assertIn("--repetition-penalty", done.stdout)


class Runs(unittest.TestCase):
    def start(self, *arguments, **options):
        command = [os.path.join(Setting.bin, "ktc-run"), Setting.plan, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def test_interrupt_ends_the_generation_and_keeps_the_text(self):
        process = self.start("--prompt", "The Linux kernel", "--max-tokens", "100000", "--ignore-eos", "--threads", "1")
        head = process.stdout.read(16)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertTrue((head + rest).endswith(b"\n"))
        self.assertIn(b"decode", errors)

    def test_interrupt_is_a_finish_reason(self):
        # the slow way, so that the cache is not full before the signal comes
        process = self.start("--prompt", "The Linux kernel", "--max-tokens", "100000", "--ignore-eos", "--json",
                             "--isa", "scalar", "--threads", "1")
        while not process.stderr.readline().startswith(b"loaded "):
            self.assertIsNone(process.poll())
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        found = json.loads(out)
        self.assertEqual(found["finish_reason"], "cancelled")
        self.assertGreater(len(found["text"]), 0)

    def test_closed_output_ends_quietly(self):
        process = self.start("--prompt", "The Linux kernel", "--max-tokens", "100000", "--ignore-eos")
        process.stdout.read(1)
        process.stdout.close()
        with process.stderr:
            errors = process.stderr.read().decode()
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertNotIn("ktc-run: ", errors)

    def test_full_disk_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([os.path.join(Setting.bin, "ktc-run"), Setting.plan, "--prompt", "x", "--max-tokens", "2"],
                                  stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ktc-run: standard output: cannot write: found No space left on device", done.stderr)

    def test_seeds(self):
        flags = ["--prompt", "In the beginning", "--max-tokens", "24", "--temperature", "1.0"]
        (a,), (b,) = (ktc_run_json(*flags, "--seed", "3") for _ in range(2))
        self.assertEqual(a["ids"], b["ids"])
        texts = {tuple(ktc_run_json(*flags, "--seed", str(s))[0]["ids"]) for s in range(4)}
        self.assertGreater(len(texts), 1)
        self.assertIn("seed 3 (command line)", ktc_run(*flags, "--seed", "3").stderr)
        self.assertRegex(ktc_run(*flags).stderr, r"temperature 1 \(command line\), seed \d+ \(random\)")

    def test_streamed_text_is_the_text(self):
        flags = ["--prompt", "To install a package,", "--max-tokens", "80", "--temperature", "1.5", "--seed", "11"]
        (found,) = ktc_run_json(*flags)
        self.assertEqual(ktc_run(*flags).stdout, found["text"] + "\n")

    def test_batch_is_headed_and_in_order(self):
        done = ktc_run("--prompt", "The Linux kernel", "--prompt", "A transaction is", "--max-tokens", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(done.stdout.index("==> 1 of 2: The Linux kernel\n"), done.stdout.index("==> 2 of 2: A transaction is\n"))

    def test_chat_renders_the_template(self):
        (plain,) = ktc_run_json("--prompt", "Hello", "--max-tokens", "4")
        (chat,) = ktc_run_json("--chat", "--prompt", "Hello", "--max-tokens", "4")
        (system,) = ktc_run_json("--chat", "--system", "Be brief.", "--prompt", "Hello", "--max-tokens", "4")
        self.assertGreater(len(chat["prompt_ids"]), len(plain["prompt_ids"]))
        self.assertGreater(len(system["prompt_ids"]), len(chat["prompt_ids"]))

    def test_conversation(self):
        done = ktc_run("--chat", "--max-tokens", "6", "--temperature", "0", "--ignore-eos", input="Hello\n\nAgain\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("prefill "), 2)  # two turns: an empty line is none
        first, second = (int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("prefill "))
        self.assertGreater(second, first)                   # the second turn has seen the first

    def test_bench(self):
        (found,) = ktc_run_json("--bench", "32,8", "--repeat", "2", "--seed", "5")
        self.assertGreater(found["prefill_tokens_per_second"], 0)
        self.assertGreater(found["decode_tokens_per_second"], 0)
        self.assertEqual(len(found["runs"]["decode_tokens_per_second"]), 2)
        self.assertEqual(found["statistics"]["prompt_tokens"], 64)


if __name__ == "__main__":
    main(__doc__)

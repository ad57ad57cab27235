#!/usr/bin/env python3
"""What becomes of the engine's process, and of whoever holds it: Ctrl-C, kills, forks, a thousand calls, the examples.

    tests/python/process_test.py PROGRAM [TEST ...]
"""
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from module_test import MODEL, PROMPTS, ROOT, idle  # noqa: E402

import quire_engine as q  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1])
LONG = q.SamplingParams(max_tokens=400, ignore_eos=True)
# Another process with an LLM, which says the engine's id and then does what stands behind.
CLIENT = """
import os, sys, time
sys.path.insert(0, {path!r})
import quire_engine as q
llm = q.LLM({model!r}, program={program!r}, max_model_len=512, quiet=True)
print(llm._engine.pid, llm._engine.socket, flush=True)
{then}
"""


def load(**options):
    return q.LLM(MODEL, program=PROGRAM, max_model_len=512, threads=2, quiet=True, **options)


def gone(pid, seconds=20):
    for _ in range(seconds * 50):
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def client(then):
    code = CLIENT.format(path=str(ROOT / "python"), model=MODEL, program=PROGRAM, then=then)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid, socket = child.stdout.readline().split()
    return child, int(pid), socket


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


class Ends(unittest.TestCase):
    def test_close(self):
        llm = load()
        pid, folder = llm._engine.pid, os.path.dirname(llm._engine.socket)
        self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
        llm.close()
        llm.close()
        self.assertTrue(gone(pid))
        self.assertFalse(os.path.exists(folder))
        with self.assertRaisesRegex(q.EngineDeadError, "was closed"):
            llm.generate("a")

    def test_close_while_others_wait(self):
        llm = load()
        errors = []

        def ask():
            try:
                llm.generate(PROMPTS, LONG)
            except q.EngineDeadError as error:
                errors.append(str(error))
        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.3)
        began = time.monotonic()
        llm.close()
        thread.join()
        self.assertEqual(errors, ["the LLM was closed"])
        self.assertLess(time.monotonic() - began, 10)

    def test_without_a_reference(self):
        llm = load()
        pid = llm._engine.pid
        del llm
        gc.collect()
        self.assertTrue(gone(pid))

    def test_with_the_interpreter(self):
        child, pid, socket = client("")
        self.assertEqual(child.wait(60), 0)
        child.stdout.close()
        self.assertTrue(gone(pid))
        self.assertFalse(os.path.exists(os.path.dirname(socket)))

    def test_with_a_killed_client(self):
        for then in ("time.sleep(600)", f"llm.generate(['a'] * 64, q.SamplingParams(max_tokens=400, ignore_eos=True))"):
            child, pid, socket = client(then)
            time.sleep(0.3)
            child.kill()
            child.wait()
            child.stdout.close()
            self.assertTrue(gone(pid))
            self.assertFalse(os.path.exists(socket))
            os.rmdir(os.path.dirname(socket))

    def test_a_fork_holds_nothing(self):
        child, pid, socket = client("""
if os.fork() == 0:
    try:
        llm.generate("a")
    except q.EngineDeadError as error:
        print(error, os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)""")
        said = child.stdout.readline()
        self.assertIn("was forked from", said)
        child.kill()
        child.wait()
        self.assertTrue(gone(pid))
        os.kill(int(said.split()[-1]), signal.SIGKILL)
        child.stdout.close()
        os.rmdir(os.path.dirname(socket))

    def test_a_killed_engine_is_an_exception(self):
        llm = load()
        killer = threading.Timer(0.3, os.kill, (llm._engine.pid, signal.SIGKILL))
        killer.start()
        with self.assertRaisesRegex(q.EngineDeadError, "was ended by signal 9"):
            llm.generate(PROMPTS, LONG)
        with self.assertRaisesRegex(q.EngineDeadError, "was ended by signal 9"):
            llm.tokenize("a")
        llm.close()

    def test_ctrl_c(self):
        with load() as llm:
            expected = llm.generate("The cat", q.SamplingParams(temperature=0))[0].outputs
            threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                llm.generate(PROMPTS, LONG)
            self.assertTrue(idle(llm))
            self.assertEqual(llm.generate("The cat", q.SamplingParams(temperature=0))[0].outputs, expected)


class Lasts(unittest.TestCase):
    def test_a_thousand_calls_take_no_memory(self):
        with load() as llm:
            def calls(count):
                for i in range(count):
                    llm.generate([f"a {i % 7}", "b"], q.SamplingParams(max_tokens=2, logprobs=1))
                    if i % 10 == 0:
                        llm.embed("a")
                        next(llm.stream("c", q.SamplingParams(max_tokens=3)))
                gc.collect()
            calls(300)
            before = resident(os.getpid()), resident(llm._engine.pid), len(os.listdir("/proc/self/fd"))
            calls(1000)
            after = resident(os.getpid()), resident(llm._engine.pid), len(os.listdir("/proc/self/fd"))
            self.assertLess(after[0] - before[0], 2 << 20)
            self.assertLess(after[1] - before[1], 8 << 20)
            self.assertEqual(after[2], before[2])

    def test_few_descriptors(self):
        import resource
        with load() as llm:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
            try:
                outputs = llm.generate(PROMPTS, q.SamplingParams(max_tokens=2))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            self.assertEqual(len(outputs), len(PROMPTS))


class Files(unittest.TestCase):
    def test_options_are_the_programs(self):
        subprocess.run([sys.executable, ROOT / "tools/make_python_options.py", PROGRAM, "--check"], check=True)

    def test_examples(self):
        # Installed as a wheel is: the module finds the program where pip lays it.
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(PROGRAM, os.path.join(folder, "quire"))
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"),
                           "PATH": folder + os.pathsep + os.environ["PATH"]}
            for example in sorted((ROOT / "examples").glob("*.py")):
                said = subprocess.run([sys.executable, example, MODEL], env=environment, check=True, text=True,
                                      stdout=subprocess.PIPE, timeout=120).stdout
                self.assertGreater(len(said.strip()), 10, example)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])

#!/usr/bin/env python3
"""The layer check is itself checked: each small tree below must give just the violations named beside it."""

import pathlib
import tempfile
import unittest

import check_layers

CASES = {
    "clean": ({"core/a.h": "", "ops/x/b.cpp": '#include "core/a.h"\n#include <vector>\n'}, []),
    "same layer": ({"ops/a.h": "", "ops/x/b.h": '#include "ops/a.h"\n'}, []),
    "down the list": (
        {"engine/e.h": "", "ops/b.cpp": '\n#include "engine/e.h"\n'},
        ["b.cpp:2: layer ops includes \"engine/e.h\""],
    ),
    "indented": ({"cli/e.h": "", "core/b.h": '  #  include "cli/e.h"\n'}, ["layer core includes"]),
    "comment": ({"cli/e.h": "", "core/b.h": '// #include "cli/e.h"\n'}, []),
    "cuda header": ({"ops/b.cpp": "#include <cuda_runtime.h>\n"}, ["CUDA header <cuda_runtime.h>"]),
    "cuda in its place": ({"ops/x/cuda_sm80.cu": "#include <cuda_bf16.h>\n", "ops/cuda/a.h": "#include <cub/cub.cuh>\n"}, []),
    "template": ({"engine/e.h": "", "ops/x/cuda/a.cu.in": '#include "engine/e.h"\n'}, ["layer ops includes"]),
    "seen by one": (
        {"cli/a.cpp": "#include <CLI/CLI.hpp>\n", "command/parse.cpp": "#include <CLI/CLI.hpp>\n"},
        ["a.cpp:1: <CLI/CLI.hpp> is for command/parse.cpp alone"],
    ),
    "cycle": (
        {"core/a.h": '#include "core/b.h"\n', "core/b.h": '#include "core/a.h"\n'},
        ["cycle: core/a.h -> core/b.h -> core/a.h"],
    ),
    "unknown layer": ({"misc/a.h": ""}, ["'misc' is no layer"]),
    "not relative to src": ({"core/a.h": "", "core/b.h": '#include "a.h"\n'}, ['"a.h" is not a file']),
}


class CheckLayers(unittest.TestCase):
    def test_cases(self):
        for name, (files, wanted) in CASES.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                src = pathlib.Path(folder)
                for path, text in files.items():
                    (src / path).parent.mkdir(parents=True, exist_ok=True)
                    (src / path).write_text(text)
                errors, count = check_layers.check(src)
                self.assertEqual(count, len(files))
                self.assertEqual(len(errors), len(wanted), errors)
                for error, part in zip(errors, wanted):
                    self.assertIn(part, error)


if __name__ == "__main__":
    unittest.main()

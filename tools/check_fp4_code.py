#!/usr/bin/env python3
"""Compiles the products of FP4 for compute capability 12.1 and looks at the code: no registers are spilled, and every
product is the tensor cores' own instruction.

    tools/check_fp4_code.py [--nvcc /usr/local/cuda/bin/nvcc] [--cuobjdump cuobjdump]

Half a minute. Without cuobjdump (and nvdisasm beside it) only spills are looked for. Needs no GPU. Ends with 77 where
there is no nvcc.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/ops/gemm/cuda/fp4.cu"
# Of each kernel of tiles: one product for each eight rows of x and row tile of a warp, of all widths that it has.
PRODUCTS = {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 60, "OMMA.SF.16864.F32.E2M1.E2M1.E8": 60}


def compile_source(nvcc, to):
    """ptxas' report."""
    command = [nvcc, "-std=c++20", "-O3", "-DNDEBUG", "-DQUIRE_CUDA", "--expt-relaxed-constexpr", "-DFMT_USE_CONSTEXPR=1",
               "-DSPDLOG_FMT_EXTERNAL", "-diag-suppress=2810,20208", f"-I{ROOT / 'src'}", "-Xptxas=-v",
               "-gencode=arch=compute_121a,code=sm_121a", "-cubin", str(SOURCE), "-o", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_fp4_code: nvcc failed\n{done.stderr}")
    return done.stderr


def check_spills(report):
    kernels = report.count("Compiling entry function")
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
    if kernels < 6 or len(spills) != 2 * kernels or any(spills):
        sys.exit(f"check_fp4_code: {kernels} kernels, bytes of spills {spills}\n{report}")
    return kernels


def check_products(cuobjdump, cubin):
    done = subprocess.run([cuobjdump, "-sass", str(cubin)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_fp4_code: cuobjdump failed\n{done.stderr}")
    for name, wanted in PRODUCTS.items():
        found = len(re.findall(re.escape(name) + r"\b", done.stdout))
        if found != wanted:
            sys.exit(f"check_fp4_code: {found} products {name}, not {wanted}")
    if re.search(r"\b(HMMA|QMMA|LDL|STL)\b", done.stdout):
        sys.exit("check_fp4_code: other products, or local memory")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    options.add_argument("--cuobjdump", default="cuobjdump")
    o = options.parse_args()
    if not shutil.which(o.nvcc):
        print("check_fp4_code: no nvcc")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "fp4.cubin"
        kernels = check_spills(compile_source(o.nvcc, cubin))
        if shutil.which(o.cuobjdump):
            check_products(o.cuobjdump, cubin)
            print(f"{kernels} kernels without spills, {sum(PRODUCTS.values())} products")
        else:
            print(f"{kernels} kernels without spills; no cuobjdump to look at products with")


if __name__ == "__main__":
    main()

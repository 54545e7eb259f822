"""The core's tests under sanitizers, and its kernels through nvcc."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def run_tests(sanitizers, target, *arguments):
    """Build tests in a persistent folder, incrementally, and run them."""
    folder = ROOT / "build" / sanitizers.replace(",", "-")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = ["-DTGFLOW_TESTS=ON", f"-DTGFLOW_SANITIZE={sanitizers}", "-DCMAKE_BUILD_TYPE=Test"]
    flags = "-DCMAKE_CXX_FLAGS=-O1 -fno-sanitize-recover=all"
    run("cmake", "-S", CSRC, "-B", folder, *generator, *options, flags)
    run("cmake", "--build", folder, "--target", target, "-j", "2")
    assert "\n0 of " in "\n" + run(folder / target, *arguments).splitlines()[-1]


needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


@needs_cmake
@pytest.mark.timeout(600)
def test_store_tests_pass_under_the_address_sanitizer():
    run_tests("address", "store_tests")


@pytest.mark.slow
@needs_cmake
@pytest.mark.timeout(1200)  # the first build takes minutes
@pytest.mark.parametrize(
    ("sanitizers", "filter"), [("address,undefined", ""), ("thread", "stress")]
)
def test_core_tests_pass_under_sanitizers(sanitizers, filter):
    run_tests(sanitizers, "core_tests", *filter.split())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("kernels", sorted((CSRC / "cuda").glob("*.cu")), ids=lambda p: p.name)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_compile(kernels, arch, tmp_path):
    target = ["-arch", arch, "-std=c++17", "-I", CSRC / "include"]
    run("nvcc", *target, "-cubin", "-o", tmp_path / "kernels.cubin", kernels)

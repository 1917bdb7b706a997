"""What `pip wheel .` gives: one small wheel for every Python 3 and every PyTorch from 2.10 on, that works
where it is installed."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
import torch

SOURCES = pathlib.Path(os.environ["OUTGRAD_SOURCE_DIR"])
ARCHIVE = pathlib.Path(os.environ["OUTGRAD_BINARY_DIR"]) / "liboutgrad.a"
LARGEST_WHEEL = 5_000_000  # bytes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made of the library's archive, if the build has it: the kernels are compiled once. And in an
    environment that is not activated: the python3 and python of PATH are others, without PyTorch, and end
    with an error."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).write_text("#!/bin/sh\necho 'the python of PATH' >&2\nexit 1\n")
        (folder / "bin" / name).chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    command = [sys.executable, "-m", "pip", "wheel", str(SOURCES), "--no-deps", "--no-build-isolation",
        "--wheel-dir", str(folder)]
    command += ["-C", f"build-dir={folder / 'build'}"]
    if ARCHIVE.exists():
        command += ["-C", "cmake.define.OUTGRAD_LIBRARY=OFF", "-C",
            f"cmake.define.OUTGRAD_TORCH_ARCHIVE={ARCHIVE}"]
    made = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)],
        check=True)
    return folder


def run_python(code, *folders):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_it_is_one_wheel_for_every_python_and_small(wheel):
    assert wheel.name.startswith("outgrad-") and "-py3-none-" in wheel.name
    assert wheel.stat().st_size <= LARGEST_WHEEL
    names = zipfile.ZipFile(wheel).namelist()
    assert sum(name.endswith(".so") for name in names) == 1
    modules = {f"outgrad/{path.name}" for path in (SOURCES / "kernels/torch/outgrad").glob("*.py")} | {
        "outgrad/swept.py"}
    assert modules == {name for name in names if name.endswith(".py")}
    assert "outgrad/py.typed" in names


def test_it_names_no_place_of_this_machine(wheel):
    """Neither of the sources, nor of the build, nor of PyTorch's headers, whose messages have __FILE__."""
    places = {str(SOURCES), os.environ["OUTGRAD_BINARY_DIR"], str(wheel.parent),
        str(pathlib.Path(torch.__file__).parent)}
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            found = [place for place in places if place.encode() in files.read(name)]
            assert not found, name


def test_it_names_the_extra_for_plots(wheel):
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (files.read(name).decode()
            for name in files.namelist() if name.endswith(".dist-info/METADATA"))
    assert "Provides-Extra: plot\n" in metadata and re.search("Requires-Dist: matplotlib *; *extra == .plot.",
        metadata)


def test_a_source_distribution_has_what_the_build_reads(tmp_path):
    """The totals of the sweeps, though the rest of notebooks_data stays out."""
    done = subprocess.run([sys.executable, "-c", f"from scikit_build_core.build import build_sdist; "
        f"print(build_sdist({str(tmp_path)!r}))"], cwd=SOURCES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    with tarfile.open(file) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    data = {name for name in inside if name.startswith("notebooks_data/")}
    assert data == {f"notebooks_data/sweeps/{path.name}"
        for path in (SOURCES / "notebooks_data/sweeps").glob("*_f32.json")}
    assert "kernels/torch/outgrad/swept.py.in" in inside and not any(name.startswith("tests/")
        for name in inside)


def test_it_uses_nothing_of_pytorch_but_the_stable_abi(installed):
    command = [pathlib.Path(sys.executable).with_name("torch-abi-audit"), "--json",
        installed / "outgrad" / "liboutgrad_torch.so"]
    audit = subprocess.run(command, capture_output=True, text=True)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    (library,) = json.loads(audit.stdout)["bundled_libs"]
    assert (library["torch"]["stable"]
        and library["torch"]["unstable_symbols"] == library["torch"]["unknown_shim_symbols"] == [])
    assert library["torch"]["stable_shim_count"] > 0
    assert library["torch"]["min_torch_version"] == "2.10.0"


def test_it_works_where_it_is_installed(installed):
    done = run_python("import outgrad, torch; x = torch.randn(8, 64, requires_grad=True); "
        "outgrad.gelu(x).sum().backward(); " "print(outgrad.__file__, x.grad.isfinite().all().item())",
        installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed / "outgrad" / "__init__.py"), "True"]


def test_it_works_in_an_environment_of_its_own(wheel, tmp_path):
    """A new virtual environment, into which pip installs the wheel; of this one it sees PyTorch alone, which
    is too large to fetch. The first lines of README.md run there."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True)
    python = tmp_path / "clean/bin/python"
    (site,) = (tmp_path / "clean/lib").glob("python3*/site-packages")
    (site / "pytorch.pth").write_text(f"{pathlib.Path(torch.__file__).parents[1]}\n")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OUTGRAD"))}
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], env=clean,
        check=True)
    (block,) = re.findall(r"^```python\n(.*?)^```$", (SOURCES / "README.md").read_text(),
        re.MULTILINE | re.DOTALL)
    code = ("import importlib.metadata, torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))\n"
        "x, loss = torch.randn(4, 8), torch.sum\n" + block
        + "assert outgrad.__version__ == importlib.metadata.version('outgrad')\n"
        "print(model[0].weight.grad.isfinite().all().item(), outgrad.__file__)\n")
    done = subprocess.run([python, "-c", code], env=clean, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 modules patched" in done.stdout or "1 modules patched" in done.stdout
    assert done.stdout.splitlines()[-1] == f"True {site / 'outgrad/__init__.py'}"


def test_importing_it_loads_no_driver(installed):
    """libcuda belongs to the machine's driver: a machine without one imports the package all the same."""
    done = run_python(
        "import outgrad; print([line for line in open('/proc/self/maps') if 'libcuda.so' in line])",
        installed)
    assert done.stdout.strip() == "[]", done.stderr


def test_an_older_pytorch_is_named(installed, tmp_path):
    (tmp_path / "torch.py").write_text('__version__ = "2.9.1+cpu"\n')
    done = run_python("import outgrad", tmp_path, installed)
    assert done.returncode != 0
    assert (done.stderr.strip().splitlines()[-1]
        == "ImportError: outgrad needs PyTorch 2.10 or later, this is 2.9.1+cpu")


def test_a_package_that_was_not_built_says_so():
    done = run_python("import outgrad", SOURCES / "kernels/torch")
    assert done.returncode != 0
    assert "has no liboutgrad_torch: the package was not built" in done.stderr.strip().splitlines()[-1]

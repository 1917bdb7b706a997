"""The notebooks are clean, and run from their first cell to the last on the committed data; the command that
their page names shows one, where the packages are Debian's.

Usage: notebooks_test.py REPOSITORY BUILD. Each runs in a copy of notebooks_data/, so that the checkout stays
as it is. Exit status 77 (skipped) without nbconvert, ipykernel and matplotlib (Debian: python3-nbconvert,
python3-ipykernel, python3-matplotlib); what was shown stays in BUILD/notebooks for who wants to look.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

NEEDED = "import nbconvert, ipykernel, matplotlib"
LEAST_PICTURES = {"sweeps": 2, "norms_under_attack": 2, "tuning_study": 2, "training": 3}

failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("FAILED:", what, file=sys.stderr)


def python():
    """An interpreter with what is needed: this one, or Debian's."""
    return next(filter(has_what_is_needed, (sys.executable, "/usr/bin/python3")), None)


def has_what_is_needed(program):
    return os.path.exists(program) and subprocess.run([program, "-c", NEEDED], capture_output=True,
                                                      check=False).returncode == 0


def check_clean(name, text):
    notebook = json.loads(text)
    expect(text.endswith("}\n") and text == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n",
           f"{name}: not as an editor saves it, indented by one")
    expect(notebook["metadata"].get("kernelspec", {}).get("name") == "python3", f"{name}: kernel")
    ids = [cell.get("id") for cell in notebook["cells"]]
    expect(all(ids) and len(set(ids)) == len(ids), f"{name}: cells without ids of their own")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            expect(not cell["outputs"] and cell["execution_count"] is None,
                   f"{name}: {cell['id']} has outputs")
    expect(notebook["cells"][0]["cell_type"] == "markdown", f"{name}: does not say what it shows")


def check_shown(name, path):
    with open(path, encoding="utf-8") as file:
        outputs = [output for cell in json.load(file)["cells"] if cell["cell_type"] == "code"
                   for output in cell["outputs"]]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    tables = sum("text/markdown" in output.get("data", {}) for output in outputs)
    expect(not any(output["output_type"] == "error" for output in outputs), f"{name}: an error was shown")
    expect(pictures >= LEAST_PICTURES.get(name, 1) and tables >= 1,
           f"{name}: {pictures} pictures, {tables} tables")
    warnings = [output["text"] for output in outputs if output.get("name") == "stderr"]
    expect(not warnings, f"{name}: warns {str(warnings)[:300]}")
    return pictures, tables


def main():
    root, build = sys.argv[1], sys.argv[2]
    data = os.path.join(root, "notebooks_data")
    names = sorted(file[:-6] for file in os.listdir(data) if file.endswith(".ipynb"))
    expect(set(LEAST_PICTURES) <= set(names), f"notebooks: {names}")
    for name in names:
        with open(os.path.join(data, name + ".ipynb"), encoding="utf-8") as file:
            check_clean(name, file.read())
    program = python()
    if not program:
        print("skipped: no nbconvert, ipykernel and matplotlib (Debian: python3-nbconvert, "
              "python3-ipykernel, python3-matplotlib)")
        return 1 if failures else 77
    begin = time.monotonic()
    keep = os.path.join(build, "notebooks")
    shutil.rmtree(keep, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        copy = os.path.join(work, "notebooks_data")
        shutil.copytree(data, copy)
        # what draws the figures
        os.symlink(os.path.join(os.path.abspath(root), "validation"), os.path.join(work, "validation"))
        environment = dict(os.environ, HOME=work, IPYTHONDIR=work + "/ipython",
                           JUPYTER_CONFIG_DIR=work + "/jupyter", JUPYTER_DATA_DIR=work + "/data",
                           MPLCONFIGDIR=work + "/matplotlib",
                           MPLBACKEND="module://matplotlib_inline.backend_inline", PYTHONNOUSERSITE="1",
                           PYTHONDONTWRITEBYTECODE="1")
        command = [program, "-m", "nbconvert", "--to", "notebook", "--execute",
                   "--ExecutePreprocessor.timeout=1200", "--ExecutePreprocessor.kernel_name=python3",
                   "--output-dir", keep] + [name + ".ipynb" for name in names]
        ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        expect(ran.returncode == 0, f"nbconvert: status {ran.returncode}: {ran.stderr[-2000:]}")
        expect(sorted(os.listdir(copy)) == sorted(os.listdir(data)), "a notebook wrote beside the data")
        with open(os.path.join(data, "README.md"), encoding="utf-8") as file:
            named = shlex.split(re.search(r"to look at one, `(.*?)`", file.read())[1])
        if has_what_is_needed("/usr/bin/python3"):  # Debian's, whose packages the page names
            shown = subprocess.run(["env", *named], cwd=copy, env=environment, capture_output=True,
                                   text=True, check=False)
            expect(shown.returncode == 0 and os.path.exists(os.path.join(copy, named[-1][:-5] + "html")),
                   f"{' '.join(named)}: status {shown.returncode}: {shown.stderr[-2000:]}")
    for name in names:
        path = os.path.join(keep, name + ".ipynb")
        if os.path.exists(path):
            pictures, tables = check_shown(name, path)
            print(f"{name}: {pictures} pictures, {tables} tables")
        else:
            expect(False, f"{name}: did not run to its end")
    print(f"{len(names)} notebooks in {time.monotonic() - begin:.1f} s; {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

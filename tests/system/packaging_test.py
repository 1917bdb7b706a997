"""What packagers read agrees with what it is about: the project's version with CITATION.cff, the wheel's, the
newest of CHANGELOG.md and the tag that CONTRIBUTING.md makes, the Dockerfile with the packages of the
wrapper, those of pyproject.toml and the commands of README.md. No image is built here: that takes docker and
a network.

usage: packaging_test.py REPOSITORY BUILD
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
WRAPPER = (ROOT / "outgrad").read_text()
VERSION = re.search(r"\nproject\(outgrad VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
PIP = {"python3-pip", "python3-venv"}


def text_of(name):
    return (ROOT / name).read_text()


def steps_of(dockerfile):
    """Its instructions, (WORD, rest), without comments and continued lines."""
    lines = re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def commands_of(text):
    """The commands of a shell line."""
    return [shlex.split(part) for part in text.split("&&")]


class Packaging(unittest.TestCase):
    def setUp(self):
        self.steps = steps_of(text_of("Dockerfile"))
        self.runs = [command for word, rest in self.steps if word == "RUN" for command in commands_of(rest)]

    def test_the_citation_has_the_projects_version_and_licence(self):
        citation = dict(re.findall(r"^([\w-]+): (\S.*)$", text_of("CITATION.cff"), re.MULTILINE))
        self.assertEqual(citation["version"], VERSION)
        self.assertTrue(text_of("LICENSE").startswith(citation["license"] + " License"))
        self.assertEqual(citation["cff-version"], "1.2.0")
        self.assertTrue({"message", "title"} <= citation.keys() and "\nauthors:\n  - name:" in
            text_of("CITATION.cff"))

    def test_the_newest_of_the_change_log_and_the_wheel_have_the_projects_version(self):
        self.assertEqual(re.findall(r"^## (.+)$", text_of("CHANGELOG.md"), re.MULTILINE)[0], VERSION)
        project = tomllib.loads(text_of("pyproject.toml"))
        self.assertEqual(project["project"]["dynamic"], ["version"])
        source = project["tool"]["scikit-build"]["metadata"]["version"]
        self.assertEqual(re.search(source["regex"], text_of(source["input"]))["value"], VERSION)

    @unittest.skipUnless(shutil.which("git"), "no git")
    def test_the_command_of_a_release_tags_the_projects_version(self):
        (command,) = re.findall(r"\n    .* && (version=.*git tag .*)", text_of("CONTRIBUTING.md"))
        command = command.replace("./outgrad", shlex.quote(str(ROOT / "outgrad")))
        setting = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        with tempfile.TemporaryDirectory() as folder:
            said = subprocess.run(["bash", "-euc", "git init -q && git commit -q --allow-empty -m x && "
                f"{command} && git tag -n"], cwd=folder, env=os.environ | setting, check=True,
                capture_output=True, text=True).stdout
        self.assertEqual(said.split(), [f"v{VERSION}", "outgrad", VERSION])

    def test_the_image_has_the_wrappers_packages(self):
        declared = re.search(r"^tool_packages=\((.*?)\)", WRAPPER, re.MULTILINE | re.DOTALL)[1].split()
        (install,) = (command for command in self.runs if command[:2] == ["apt-get", "install"])
        named = {word for word in install[2:] if not word.startswith("-")}
        self.assertEqual(named, set(declared) | PIP)

    def test_the_image_has_what_the_package_is_built_with(self):
        project = tomllib.loads(text_of("pyproject.toml"))
        wanted = set(project["build-system"]["requires"]) | set(project["project"]["dependencies"])
        installs = [command for command in self.runs if command[:2] == ["/opt/outgrad/bin/pip", "install"]]
        self.assertEqual(wanted - {word for command in installs for word in command}, set())

    def test_the_image_and_the_container_run_the_readmes_two_commands(self):
        readme = text_of("README.md")
        start = readme[readme.index("## Start"):]
        first, second = re.findall(r"^    (\S.*?)\s*#", start, re.MULTILINE)[:2]
        self.assertEqual(shlex.split(first), ["pip", "install", "."])
        container = json.loads(text_of(".devcontainer/devcontainer.json"))
        for commands in (self.runs, commands_of(container["postCreateCommand"])):
            plain = [[word for word in command if not word.startswith("--no-")] for command in commands]
            self.assertIn(shlex.split(first), plain)
            self.assertIn(shlex.split(second), plain)

    def test_what_the_commands_name_exists(self):
        commands = [command for command in self.runs if command[0] == "./outgrad"]
        self.assertTrue(commands)
        known = subprocess.run([ROOT / "outgrad", "--help"], check=True, capture_output=True,
                               text=True).stdout
        for _, name, *files in commands:
            self.assertRegex(known, rf"(?m)^  {name} ")
            for file in files:
                self.assertTrue((ROOT / file).is_file(), file)

    def test_the_container_is_made_of_the_dockerfile(self):
        folder = ROOT / ".devcontainer"
        build = json.loads((folder / "devcontainer.json").read_text())["build"]
        self.assertEqual((folder / build["dockerfile"]).resolve(), ROOT / "Dockerfile")
        self.assertEqual((folder / build["context"]).resolve(), ROOT)

    def test_the_system_is_the_one_that_the_readme_names(self):
        self.assertEqual(self.steps[0], ("FROM", "debian:12-slim"))
        self.assertIn("Debian 12", text_of("README.md"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

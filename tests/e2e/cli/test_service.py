"""`trimtab up --install-service`: a unit that systemd takes, that means the same, and that can be removed."""

import configparser
import json
import os
import shutil
import subprocess

import pytest
from trimtab_program import Program, chat, read_ready

from trimtab.cli.options import Wish, parse_pin
from trimtab.cli.service import render_wish
from trimtab.errors import StackFileError


class Configured(Program):
    """trimtab with a configuration folder of its own."""

    secrets: tuple[tuple[str, str], ...] = ()

    def environment(self) -> dict[str, str]:
        return super().environment() | {"XDG_CONFIG_HOME": str(self.root / "config")} | dict(self.secrets)


@pytest.fixture
def program(tmp_path):
    made = Configured(tmp_path, is_warm=True)
    (tmp_path / "my stack.yaml").write_text(
        "name: pair\nmodels: {a: {checkpoint: smollm2-135m, engine_args: {n_threads: 1}}}\n"
    )
    yield made
    made.close()


def unit_of(program, name="pair"):
    return program.root / "config" / "systemd" / "user" / f"trimtab-{name}.service"


def sections(path):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(path)
    return parser


def words_of(line):
    """The words of ExecStart, as systemd reads them where nothing needs escaping."""
    return [word.strip('"') for word in line.split('" "')]


def test_a_unit_is_written_and_how_to_enable_it_is_said(program):
    """Two commands start the stack at every login, a third one without any login."""
    done = program.run("up", "my stack.yaml", "--port", "0", "--install-service")
    unit = sections(unit_of(program))

    assert done.returncode == 0, done.stderr
    assert "systemctl --user daemon-reload" in done.stdout
    assert "systemctl --user enable --now trimtab-pair.service" in done.stdout
    assert "loginctl enable-linger" in done.stdout
    assert str(program.root / "my stack.yaml") in unit["Service"]["ExecStart"]
    assert unit["Service"]["WorkingDirectory"] == str(program.root)
    assert unit["Service"]["KillMode"] == "mixed"
    assert not program.processes()


def test_the_units_command_serves_the_stack(program):
    """What systemd would run is a stack that answers, from another folder too, and ends with 0 on SIGTERM."""
    program.run("up", "my stack.yaml", "--port", "0", "--install-service")
    words = words_of(sections(unit_of(program))["Service"]["ExecStart"])
    process = subprocess.Popen(
        [*words, "--json"],
        env=program.environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    program.ups.append(process)
    endpoint = read_ready(process)["endpoint"]

    assert chat(endpoint)
    process.terminate()
    assert process.wait(60) == 0
    program.wait_empty()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit_as_it_is(program):
    """The service manager finds nothing to complain of, also with odd characters in the paths."""
    folder = program.root / 'a%b "c" $HOME'
    folder.mkdir()
    (program.root / "my stack.yaml").rename(folder / "s.yaml")
    done = program.run("up", "s.yaml", "--set", "n_threads=2", "--install-service", cwd=folder)
    runtime = program.root / "runtime"
    runtime.mkdir(mode=0o700)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit_of(program))],
        env=os.environ | {"XDG_RUNTIME_DIR": str(runtime)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert verified.returncode == 0, verified.stderr
    assert "trimtab-pair.service" not in verified.stderr, verified.stderr


def test_writing_it_again_replaces_ours_and_never_anothers(program):
    """A unit that somebody wrote by hand is theirs."""
    program.run("up", "my stack.yaml", "--install-service")
    program.run("up", "my stack.yaml", "--port", "8123", "--install-service")
    again = unit_of(program).read_text()
    unit_of(program).write_text("[Service]\nExecStart=/bin/true\n")
    refused = program.run("up", "my stack.yaml", "--install-service")
    kept = program.run("up", "my stack.yaml", "--uninstall-service")

    assert '"8123"' in again
    assert refused.returncode == 4
    assert "was not written by trimtab" in refused.stderr
    assert kept.returncode == 4
    assert unit_of(program).read_text() == "[Service]\nExecStart=/bin/true\n"


@pytest.mark.parametrize("name", ["my stack.yaml", "pair"], ids=["by file", "by name"])
def test_a_unit_is_removed_again(program, name):
    """What was installed by one option is gone by another, also when the stack's file is gone."""
    program.run("up", "my stack.yaml", "--install-service")
    wants = unit_of(program).parent / "default.target.wants"
    wants.mkdir()
    (wants / unit_of(program).name).symlink_to(unit_of(program))
    if name == "pair":
        (program.root / "my stack.yaml").unlink()
    done = program.run("up", name, "--uninstall-service", "--json")

    assert json.loads(done.stdout)["removed"] == str(unit_of(program))
    assert not unit_of(program).exists()
    assert list(wants.iterdir()) == []
    assert program.run("up", "smollm2-135m", "--uninstall-service").returncode == 2


def test_secrets_stay_out_of_the_unit(program):
    """A token in a file that everybody may read is no secret; where it belongs is said."""
    program.secrets = (("HF_TOKEN", "hf_secret"), ("HTTPS_PROXY", "http://me:pass@proxy:1"))
    done = program.run("up", "my stack.yaml", "--install-service")
    text = unit_of(program).read_text()

    assert "hf_secret" not in text
    assert "pass@" not in text
    assert "service.env" in text
    assert "HF_TOKEN" in done.stderr
    assert "hf_secret" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere.yaml"], 2, "does not exist"),
        (["my stack.yaml", "--ram", "100MiB"], 3, "would fit"),
        (["--plan", "-"], 2, "standard input"),
    ],
    ids=["no stack", "does not fit", "plan from stdin"],
)
def test_what_cannot_run_is_not_installed(program, arguments, code, words):
    """A service that would fail at every start is refused now."""
    plan = program.run("plan", "smollm2-135m", "--json").stdout
    done = program.run("up", *arguments, "--install-service", stdin=plan)

    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert not (program.root / "config").exists()


def test_a_folder_that_cannot_be_written_is_named(program):
    """The refusal says which folder, and which variable moves it."""
    (program.root / "config").write_text("a file where a folder belongs")
    done = program.run("up", "my stack.yaml", "--install-service")

    assert done.returncode == 4
    assert "XDG_CONFIG_HOME" in done.stderr


def test_every_wish_comes_back_from_its_words():
    """The service runs what was asked for, pins with odd values too."""
    pins = (("a", 1), ("b", "1"), ("c", '{"x": [1, "y z"]}'), ("d", None), ("e", True), ("f", '%$\\ "'))
    wish = Wish(target="org/m", context=9, gpus="2xrtx4090", ram="8GiB", pins=pins, port=0)
    words = render_wish(wish)

    assert words[:5] == ("org/m", "--context", "9", "--gpus", "2xrtx4090")
    assert tuple(parse_pin(words[at + 1]) for at, word in enumerate(words) if word == "--set") == pins
    assert words[words.index("--port") + 1] == "0"
    with pytest.raises(StackFileError):
        render_wish(Wish(target=None, plan_file="-"))

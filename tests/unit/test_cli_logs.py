"""``trimtab logs`` where the log folder holds what is no log."""

import json
from types import SimpleNamespace

import pytest

from trimtab.cli.main import main


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    logs = tmp_path / "trimtab" / "logs"
    (logs / "odd.log").mkdir(parents=True)
    (logs / "m.log").write_text("hello\n")

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["logs", *words])
        told = capsys.readouterr()
        return SimpleNamespace(exit_code=ended.value.code, output=told.out + told.err)

    return run


def test_a_folder_is_no_log(run):
    """The logs beside it are shown; asked for by name it is told in a sentence."""
    done, asked = run("--json"), run("odd")

    assert json.loads(done.output) == {"m": ["hello"]}
    assert asked.exit_code == 2
    assert "there is no log of 'odd'" in asked.output


def test_a_log_that_cannot_be_read_is_told(run, monkeypatch):
    """Whatever the system says, in a sentence."""

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("trimtab.cli.logs.read_last_lines", fail)
    done = run("m")

    assert (done.exit_code, "m.log cannot be read: Permission denied" in done.output) == (2, True)


def test_the_help_names_the_log_of_requests(run):
    """Who looks for it finds it."""
    assert "trimtab-requests" in run("--help").output

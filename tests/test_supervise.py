"""The supervisor, with a program in place of Flower's that fails as often as it is told."""

import fcntl
import json
import os
import stat
import sys
import threading

import pytest

from asyncmanifold.commands.cli import main
from asyncmanifold.commands.supervise import SupervisedRun
from asyncmanifold.errors import InputError

FLWR = """#!{python}
import json, os, pathlib, sys
home = pathlib.Path({home!r})
with (home / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "stop":
    sys.exit()
print("Successfully started run 17", flush=True)
out = home / "out"
out.mkdir(exist_ok=True)
(out / "config.toml").touch()
plan = json.loads((home / "plan").read_text())
step = plan.pop(0)
(home / "plan").write_text(json.dumps(plan))
with (out / "trace.jsonl").open("a") as trace:
    for update in range(step.get("updates", 0)):
        trace.write('{{"kind": "update"}}\\n')
if step.get("finishes"):
    (out / "summary.json").write_text("{{}}")
"""


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    """Return a function that says what each call of ``flwr run`` does."""
    program = tmp_path / "bin" / "flwr"
    program.parent.mkdir()
    program.write_text(FLWR.format(python=sys.executable, home=str(tmp_path)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("asyncmanifold.commands.supervise.POLL_SECONDS", 0.02)
    monkeypatch.setattr("asyncmanifold.commands.supervise.LAST_WORDS_SECONDS", 0.1)
    return lambda *steps: (tmp_path / "plan").write_text(json.dumps(steps))


def calls(tmp_path):
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def supervised(tmp_path, pauses, **settings):
    run = SupervisedRun("app", "link", tmp_path / "out", "clients=2", **settings)
    return run.supervise(sleep=pauses.append)


def test_a_run_that_fails_is_resumed_until_it_has_finished(flwr, tmp_path, capfd):
    flwr({"updates": 2}, {}, {}, {"updates": 1}, {"updates": 3, "finishes": True})
    pauses = []
    assert supervised(tmp_path, pauses) == 0
    assert pauses == [5.0, 10.0, 20.0, 5.0]  # twice as long each time, until there is progress
    runs = [call for call in calls(tmp_path) if call[0] == "run"]
    assert runs[0][:4] == ["run", "app", "link", "--stream"]
    resumed = [call[-1].rpartition("resume=")[2] for call in runs]
    assert resumed == ["false", "true", "true", "true", "true"]
    assert all(f'clients=2 out="{tmp_path / "out"}"' in call[-1] for call in runs)
    told = capfd.readouterr()
    assert "Successfully started run 17" in told.out
    assert "finished: 6 updates" in told.err


def test_a_run_that_never_gets_on_is_given_up(flwr, tmp_path, capfd):
    flwr(*[{}] * 3)
    assert supervised(tmp_path, [], attempts=3) == 1
    assert "giving up after 3 attempts" in capfd.readouterr().err


def test_a_finished_run_is_not_started_again(flwr, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text("{}")
    assert main(["flower", "supervise", "app", "link", "--out", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "calls").exists()


def test_a_server_that_is_gone_is_noticed_at_once(flwr, tmp_path, capfd):
    """While Flower still believes in it; what it believes in is stopped, so that nodes become free."""
    program = tmp_path / "bin" / "flwr"
    program.write_text(
        program.read_text() + "import time\nif not step.get('finishes'):\n    time.sleep(60)\n"
    )
    flwr({"updates": 1}, {"updates": 1, "finishes": True})
    (tmp_path / "out").mkdir()
    lock = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run = SupervisedRun("app", "link", tmp_path / "out")
    assert run.is_locked
    threading.Timer(0.5, os.close, [lock]).start()
    assert run.supervise(sleep=lambda seconds: None) == 0
    told = capfd.readouterr().err
    assert "a server is still at work on this run: waiting for its end" in told
    assert "the server is gone" in told
    assert [call[:3] for call in calls(tmp_path)][1] == ["stop", "17", "link"]


def test_wrong_settings_are_one_line(tmp_path, capsys):
    assert main(["flower", "supervise", "app", "link", "--out", "here"]) == 2
    assert "--out here must be an absolute path" in capsys.readouterr().err
    with pytest.raises(InputError, match="resume=…: must not be given"):
        SupervisedRun("app", "link", tmp_path, "clients=2 resume=true")

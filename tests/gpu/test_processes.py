"""Several processes on one GPU: a kernel cache that they share, and the server MPS of CUDA."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

ROOT = Path(__file__).parents[2]
COUNT = 2
"""Number of processes that multiply at the same time."""
LONGEST, CONTROL = 240, "nvidia-cuda-mps-control"
"""LONGEST: seconds that a client may take. CONTROL: the program that starts and stops MPS."""
PROBE = "import torch; torch.ones(1, device='cuda').item()"
"""Code that fails if a process cannot use the GPU."""


def clients(folder: Path, environment: Mapping[str, str]) -> list[dict[str, bool]]:
    """Run `tests.gpu.process_client` in processes at the same time; return what they print.

    Args:
        folder: a folder for the rendezvous of the processes.
        environment: environment variables of the processes, in addition to those of this one.
    """
    meeting = folder / "meeting"
    meeting.mkdir()
    started: list[subprocess.Popen[str]] = []
    try:
        for number in range(COUNT):
            arguments = str(meeting), f"client-{number}", str(COUNT)
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.gpu.process_client", *arguments],
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        done = [client.communicate(timeout=LONGEST) for client in started]
    finally:
        for client in started:
            if client.poll() is None:
                client.kill()
                client.wait()
    for client, (_, errors) in zip(started, done, strict=True):
        assert client.returncode == 0, errors
    return [json.loads(printed.splitlines()[-1]) for printed, _ in done]


def test_two_processes_fill_one_cache(tmp_path: Path):
    """Both get right results, and each kernel is compiled by one of them, loaded by the other."""
    one, two = clients(tmp_path, {"COORDGRAPH_CACHE": str(tmp_path / "cache")})
    assert one.keys() == two.keys()
    assert len(one) >= 2
    compiled = {plan: [not each[plan] for each in (one, two)].count(True) for plan in one}
    assert set(compiled.values()) == {1}, compiled


@pytest.fixture
def mps() -> Iterator[dict[str, str]]:
    """Environment variables of clients of an MPS server, which runs during the test.

    The test is skipped if MPS is not installed, or this user may not start it.
    """
    if shutil.which(CONTROL) is None:
        pytest.skip(f"{CONTROL} is not installed")
    # Paths of sockets have at most 107 bytes, so the folder is not pytest's.
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    for path in variables.values():
        Path(path).mkdir()
    environment = {**os.environ, **variables}
    began = subprocess.run(
        [CONTROL, "-d"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    try:
        if began.returncode:
            pytest.skip(f"MPS cannot be started: {(began.stderr or began.stdout).strip()}")
        probe = subprocess.run(
            [sys.executable, "-c", PROBE],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )
        if probe.returncode:
            reason = (probe.stderr.strip() or "no message").splitlines()[-1]
            pytest.skip(f"MPS serves no process here: {reason}")
        if not (servers := _asked("get_server_list", environment)):
            pytest.skip("the processes of this machine do not use the MPS server")
        print(f"MPS servers: {servers}")
        yield variables
    finally:
        if not began.returncode:
            _asked("quit -t 10", environment)
        shutil.rmtree(folder, ignore_errors=True)


def _asked(command: str, environment: Mapping[str, str]) -> str:
    """Send a command to the MPS control daemon of the test, and return the answer."""
    found = subprocess.run(
        [CONTROL],
        input=f"{command}\n",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return found.stdout.strip()


def test_two_clients_of_mps(mps: dict[str, str], tmp_path: Path):
    """Kernels of two processes that run on the GPU at the same time give right results.

    Under MPS, processes share the SMs, so workgroups of a launch may start late.
    """
    for each in clients(tmp_path, {"COORDGRAPH_CACHE": str(tmp_path / "cache"), **mps}):
        assert len(each) >= 2

"""As in a pod that may do nothing: an unknown user, nothing writable but /tmp, no capabilities, no network.

Linux namespaces stand for the pod, and making them needs root: elsewhere these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UID = "12345"  # in no /etc/passwd
ROOT = Path(__file__).parents[2]

# In namespaces of its own: what is mounted here and the interface that is brought up here are nobody else's.
RESTRICTED = r"""
set -eu
python=$1; base=$2; home=~root; project=$PWD; shift 2
mount --make-rprivate /
case $project in /tmp/*)  # a checkout that the new /tmp would hide: keep it, read-only
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/project && mount --bind "$project" /mnt/project
esac
mount -t tmpfs -o mode=1777 tmpfs /tmp
case $project in /tmp/*)
    mkdir -p "$project" && mount --bind /mnt/project "$project"
    mount -o remount,bind,ro "$project" && umount /mnt/project && cd "$project"
esac
case $base in "$home"/*)  # an interpreter that only root reaches: show it, and nothing else of that home
    mkdir /tmp/base && mount --bind "$base" /tmp/base
    mount -t tmpfs -o mode=755 tmpfs "$home"
    mkdir -p "$base" && mount --bind /tmp/base "$base" && umount /tmp/base && rmdir /tmp/base
esac
awk '$2 !~ "^/(proc|sys|dev|tmp)(/|$)" {print $2}' /proc/self/mounts | sort -ru | while read -r place; do
    mount -o remount,bind,ro "$place" 2>/dev/null || true
done
"$python" - <<'EOF'
import fcntl, socket, struct
with socket.socket() as loopback:
    fcntl.ioctl(loopback, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
EOF
exec setpriv --reuid UID --regid UID --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$python" "$@"
""".replace("UID", UID)

PROGRAM = """
import asyncio, json, os, signal, socket, subprocess, sys

def refused(act):
    try:
        act()
    except OSError:
        return True
    return False

status = open("/proc/self/status").read().splitlines()
capabilities = [line.split()[1] for line in status if line.startswith(("CapEff", "CapPrm", "CapBnd"))]
walls = {
    "user": os.getuid(),
    "capabilities": capabilities,
    "no_home": "HOME" not in os.environ,
    "read_only": all(refused(lambda: open(f"{place}/soloist-wrote", "w")) for place in (".", "/", "/var", sys.prefix)),
    "no_network": refused(lambda: socket.create_connection(("192.0.2.1", 53), 2)),
}
server = subprocess.Popen(
    [sys.executable, "-m", "service", "serve", "--device", "cpu", "--context", "512", "--slots", "1", "--threads", "1",
     "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--propagation-s", "0"],
    stderr=subprocess.PIPE, text=True,
)
seen = []
for line in server.stderr:
    seen.append(json.loads(line))
    if seen[-1]["message"] == "ready":
        break
else:
    sys.exit(f"not ready: {seen}")

from service.client import ChatClient

async def ask():
    async with ChatClient(seen[-1]["grpc"]) as chat:
        return (await chat.ask("What is the capital of France?", max_tokens=8, temperature=0)).text

answer = asyncio.run(ask())
server.send_signal(signal.SIGTERM)
server.stderr.read()
print(json.dumps({**walls, "answer": answer, "exit_code": server.wait(30)}))
"""


def _may_restrict() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mount", "awk"))):
        return False
    return subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _may_restrict(), reason="needs root and Linux namespaces")
def test_promise_20_promise_21_k8s_07_it_serves_with_nothing_but_tmp(embedded_model: Path) -> None:
    import json

    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment = {**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "HF_HUB_OFFLINE": "1"}
    command = [
        "unshare",
        "--mount",
        "--net",
        "--fork",
        "bash",
        "-c",
        RESTRICTED,
        "bash",
        sys.executable,
        sys.base_prefix,
        "-c",
        PROGRAM,
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["user"] == int(UID)
    assert {int(mask, 16) for mask in said["capabilities"]} == {0}
    assert said["no_home"]
    assert said["read_only"]
    assert said["no_network"]
    assert "Paris" in said["answer"]
    assert said["exit_code"] == 0

"""Runs a program in an image as in a pod of the restricted kind: by namespaces, with what a kubelet gives and no more.

A user id that no file names, a root that cannot be written, /tmp in memory, no network but the loopback, no capability.
"""

from __future__ import annotations

import subprocess
import sys

from tests.image.building import Image

UID = 12345
CPU_QUOTA = 1

# In namespaces of its own: what is mounted here and the interface that is brought up here are nobody else's.
_ENTER = r"""
set -eu
root=$1; uid=$2; quota=$3; python=$4; shift 4
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero random urandom; do
    touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs tmpfs "$root/sys"
mkdir -p "$root/sys/fs/cgroup"
echo "${quota}00000 100000" > "$root/sys/fs/cgroup/cpu.max"
for place in "" /dev /sys; do mount -o remount,bind,ro "$root$place"; done
"$python" - <<'EOF'
import fcntl, socket, struct
with socket.socket() as loopback:
    fcntl.ioctl(loopback, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
EOF
exec chroot "$root" /usr/bin/setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all /usr/bin/env -i "$@"
"""


def run_restricted(image: Image, *command: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """Run `command` in `image` with the image's own environment and working directory, and none of this process's."""
    namespaces = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
    inside = [f"--chdir={image.config.get('WorkingDir') or '/'}", *image.config["Env"], *command]
    arguments = (str(image.root), str(UID), str(CPU_QUOTA), sys.executable)
    return subprocess.run(
        ["unshare", *namespaces, "bash", "-c", _ENTER, "bash", *arguments, *inside],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip

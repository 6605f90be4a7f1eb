"""Stand-ins for kubectl, helm, terraform and aws: they write down how they were called, and do as they are told.

There is no cluster to be had here. What a stand-in says is what the real one says.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# With neither site packages nor the environment's own settings: it starts in a few milliseconds.
_STAND_IN = f"""#!{sys.executable} -SE
import json, os, signal, sys
folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
name, words = os.path.basename(__file__), sys.argv[1:]
with open(os.path.join(folder, "calls.jsonl"), "a") as calls:
    calls.write(json.dumps([os.environ.get("KUBECONFIG", ""), name, *words]) + "\\n")
said = " ".join([name, *words])
with open(os.path.join(folder, "answers.json")) as file:
    answers = json.load(file)
for part, answer in answers:
    if part in said:
        break
else:
    answer = {{}}
if answer.get("hang"):
    def interrupted(*_):
        open(os.path.join(folder, "interrupted"), "w").close()
        sys.exit(1)
    signal.signal(signal.SIGINT, interrupted)
    open(os.path.join(folder, "hanging"), "w").close()
    signal.pause()
sys.stdout.write(answer.get("output", ""))
sys.stderr.write(answer.get("errors", ""))
sys.exit(answer.get("code", 0))
"""


# What the two roots say, once they are applied.
CLUSTER: dict[str, Any] = {
    "cluster_name": "gpu",
    "region": "us-west-2",
    "karpenter_values": {"settings": {"clusterName": "gpu", "interruptionQueue": "gpu"}},
    "soloist_nodes_values": {"clusterName": "gpu", "nodeRole": "gpu-karpenter-node", "tags": {"owner": "me"}},
}
PLATFORM: dict[str, Any] = {
    "soloist_values": {
        "image": {"repository": "100000000001.dkr.ecr.us-west-2.amazonaws.com/soloist"},
        "model": {"source": "s3", "s3": {"uri": "s3://models/models/llama-3.1-8b", "region": "us-west-2"}},
        "serviceAccount": {"create": True, "name": "soloist"},
    },
    "service_account": {"namespace": "soloist", "name": "soloist"},
}


def outputs(values: dict[str, Any]) -> str:
    """What `terraform output -json` prints of a root with these."""
    return json.dumps({name: {"sensitive": False, "type": "string", "value": value} for name, value in values.items()})


@dataclass(slots=True)
class FakeTools:
    """A folder of stand-ins.

    Attributes:
        answers: part of a command line to what happens: `output`, `errors`, `code` or `hang`. The first that fits.
    """

    folder: Path
    answers: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, *names: str) -> FakeTools:
        (folder / "bin").mkdir(parents=True)
        for name in names:
            tool = folder / "bin" / name
            tool.write_text(_STAND_IN)
            tool.chmod(0o755)
        tools = cls(folder)
        tools.write()
        return tools

    def on(self, part: str, **answer: Any) -> None:
        """From now on a command line with `part` in it is answered so, whatever was said before."""
        self.answers.insert(0, (part, answer))
        self.write()

    def write(self) -> None:
        (self.folder / "answers.json").write_text(json.dumps(self.answers))

    @property
    def path(self) -> str:
        """PATH with the stand-ins first."""
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def calls(self, name: str | None = None) -> list[list[str]]:
        """Each call's words, the tool's name first, in order."""
        return [words for _, *words in self._lines() if name in (None, words[0])]

    def kubeconfigs(self, *names: str) -> set[str]:
        """The KUBECONFIG of these tools' calls."""
        return {line[0] for line in self._lines() if line[1] in names}

    def _lines(self) -> list[list[str]]:
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

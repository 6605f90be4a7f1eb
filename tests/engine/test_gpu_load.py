"""Host memory while a large model travels to the device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint.layout import expected_shapes
from tests.checkpoints import Sizes, tiny_architecture, tiny_config, write_index, write_tiny_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LLAMA_3_1_8B = Sizes(
    layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, ffn_width=14336, vocabulary=128256, context=8192
)
LIMIT_BYTES = 4 << 30
MEASURE = """
import sys
import torch
import engine
from engine.checkpoint import open_checkpoint
from engine.weights import load_weights

def high_water_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

torch.ones(1, device="cuda").sum().item()
before = high_water_kb()
checkpoint = open_checkpoint(sys.argv[1])
load_weights(checkpoint, torch.device("cuda"), torch.bfloat16, 8192)
torch.cuda.synchronize()
print((high_water_kb() - before) * 1024)
"""


def test_an_8b_model_loads_in_4_gib_of_host_memory(tmp_path: Path) -> None:
    architecture = tiny_architecture("llama", sizes=LLAMA_3_1_8B, tied=False)
    folder = write_tiny_folder(tmp_path / "8b")
    (folder / "model.safetensors").unlink()

    (folder / "config.json").write_text(json.dumps(tiny_config(architecture, torch.bfloat16)))
    shapes = list(expected_shapes(architecture).items())
    shards = 4
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {
            name: torch.randn(shape, dtype=torch.bfloat16, device="cuda").mul_(0.02).cpu()
            for name, shape in shapes[shard::shards]
        }
        save_file(part, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    write_index(folder, weight_map, 0)
    torch.cuda.empty_cache()
    run = subprocess.run([sys.executable, "-c", MEASURE, str(folder)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    used = int(run.stdout)
    print(f"host memory above the interpreter's: {used / 2**20:.0f} MiB")
    assert used < LIMIT_BYTES

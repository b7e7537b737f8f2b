"""A model small enough to be killed often, whose every token depends on all that came before.

The tiny model's own logits are nearly flat: at a temperature of 1 its text is decided by the
seed and the position, and a stream that went on from the wrong tokens would look right.
"""

import shutil
from pathlib import Path

CONTEXT = 4096
_SHARPER = 15


def lively_model(tiny: Path, folder: Path) -> Path:
    """Make it out of the tiny model, with room for long answers; returns ``folder``."""
    import torch
    from transformers import LlamaForCausalLM

    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    model = LlamaForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(_SHARPER)
    model.config.max_position_embeddings = CONTEXT
    model.save_pretrained(folder)
    return folder

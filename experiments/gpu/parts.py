"""All parts of the check, in order: contracts first, then speed."""

from dataclasses import replace
from functools import cache, partial

import torch
import transformers
import triton

from engine.cuda.decoder import Decoder
from experiments.gpu import contracts, models, speed
from experiments.gpu.contracts import Place
from experiments.gpu.models import ModelShape
from experiments.gpu.report import Part, Result

# (head size, query heads, key/value heads)
_HEADS = ((64, 32, 8), (128, 32, 8), (80, 32, 32), (96, 24, 8), (256, 16, 8))
_TINY_HEADS = ((16, 2, 1),)


def parts_of(place: Place) -> list[Part]:
    """The parts for a device; making them costs nothing yet."""
    shapes = [models.TINY] if place.tiny else [models.LLAMA_1B, models.LLAMA_8B]
    parts = [Part("machine", partial(_machine, place))]
    for shape in shapes:
        work = partial(contracts.products, place, shape.weights())
        parts.append(Part(f"products of the {shape.name} shape", work))
    for dim, heads, kv_heads in _TINY_HEADS if place.tiny else _HEADS:
        work = partial(contracts.attention, place, dim, heads, kv_heads)
        parts.append(Part(f"attention, {heads} heads of {dim}, {kv_heads} of keys", work))
    for shape in shapes:
        # Two layers show what thirty would.
        work = partial(contracts.model, place, replace(shape, layers=min(2, shape.layers)))
        parts.append(Part(f"same bits of a model of the {shape.name} shape, two layers", work))
    parts.append(Part("sampling", partial(contracts.sampling, place, shapes[0].vocab)))
    rate = cache(partial(speed.copy_rate, place.device))
    parts.append(Part("memory bandwidth", lambda: {"GB/s of a copy, both ways": rate() / 1e9}))
    for shape in shapes:
        parts += _speed(place, shape, rate)
    return parts


def _speed(place: Place, shape: ModelShape, rate: "speed.Rate") -> list[Part]:
    load = speed.TINY_LOAD if place.tiny else speed.Load()
    held: dict[str, speed.SpeedTest] = {}

    def test() -> speed.SpeedTest:
        """The model, loaded by whichever part of it comes first in this process."""
        if not held:
            model = models.random_model(shape, place.dtype, place.device)
            decoder = Decoder(model, load.longest)
            held["test"] = speed.SpeedTest(place, shape, decoder, load, rate())
        return held["test"]

    def loaded() -> Result:
        return {"seconds to record graphs": test().recording_s}

    def prefill() -> Result:
        found = test().prefill()
        held.clear()  # the next model needs the memory
        return found

    return [
        Part(f"{shape.name}: load", loaded),
        *(
            Part(f"{shape.name}: decode, {n} at once", partial(_decode, test, n))
            for n in load.concurrent
        ),
        Part(f"{shape.name}: prefill", prefill),
    ]


def _decode(test: "speed.Loaded", concurrent: int) -> Result:
    return test().decode(concurrent)


def _machine(place: Place) -> Result:
    told: Result = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "dtype": str(place.dtype),
    }
    if place.device.type == "cpu":
        return {**told, "device": "Triton's interpreter"}
    properties = torch.cuda.get_device_properties(0)
    return {
        **told,
        "device": properties.name,
        "compute capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory, GiB": properties.total_memory / 2**30,
    }

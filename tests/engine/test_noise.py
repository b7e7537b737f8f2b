import math

import pytest
import torch

from engine.noise import Noise, _gumbel, noise_key

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mixed(x: int) -> int:
    """SplitMix64's finaliser as its authors print it, on Python's integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def noise_by_hand(key: int, token: int) -> float:
    word = mixed(((key & MASK) + (token // 2 + 1) * GAMMA) & MASK)
    half = (word >> 32 if token % 2 else word) & 0x7FFFFFFF
    return -math.log(-math.log1p(-(half + 0.5) / 2**31))


def rows(noise: Noise, *keys: int) -> torch.Tensor:
    return noise.rows(torch.tensor(keys).unsqueeze(1))


def test_keys_are_the_published_splitmix64_stream() -> None:
    # The first outputs of the generator that starts from state 0.
    assert [noise_key(0, position) & MASK for position in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_keys_differ_by_seed_and_position_and_take_any_64_bit_seed() -> None:
    seeds = [0, 1, 2, -1, -2, 2**31, 2**32, 2**63 - 1, -(2**63)]
    keys = {noise_key(seed, position) for seed in seeds for position in range(100)}
    assert len(keys) == len(seeds) * 100
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert noise_key(-1, 5) == noise_key(2**64 - 1, 5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [1, 2, 7, 1000])
def test_noise_is_the_hash_computed_by_hand(device: str, vocab: int) -> None:
    noise = Noise(vocab, device)
    keys = [noise_key(seed, seed % 3) for seed in range(-3, 3)]
    got = noise.rows(torch.tensor(keys, device=device).unsqueeze(1)).cpu()
    want = torch.tensor([[noise_by_hand(key, token) for token in range(vocab)] for key in keys])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocab", [33, 4097, 49_153])
def test_a_value_has_the_same_bits_in_every_shape_and_at_every_offset(vocab: int) -> None:
    noise = Noise(vocab, "cpu")
    keys = [noise_key(seed, 0) for seed in range(5)]
    alone = [rows(noise, key)[0] for key in keys]
    assert torch.equal(rows(noise, *keys), torch.stack(alone))
    assert torch.equal(rows(noise, *keys[::-1]), torch.stack(alone[::-1]))
    ids = torch.arange(vocab)
    for start in (0, 1, 2, 3, 15):
        for length in (1, 2, 3, 7, 8, 15, 16, 17, 31):
            part = ids[start : start + length]
            assert torch.equal(noise.at(keys[0], part), alone[0][part])
    some = ids[torch.randperm(vocab, generator=torch.Generator().manual_seed(1))]
    assert torch.equal(noise.at(keys[0], some), alone[0][some])


def test_a_value_has_the_same_bits_on_one_thread_and_on_two() -> None:
    noise, before = Noise(98_305, "cpu"), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = rows(noise, 5)
        torch.set_num_threads(2)
        two = rows(noise, 5)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_noise_is_finite_for_the_extreme_hashes() -> None:
    # No key is known that leads to them, hence the private function.
    bits = torch.tensor([0, 1, 2**31 - 1, 2**31 - 2, -1, -(2**31)], dtype=torch.int32)
    values = _gumbel(bits)
    assert torch.isfinite(values).all()
    assert values[0] == values[5] > 20  # the sign bit does not count
    assert values[2] == values[4] < -2.5


def test_noise_is_standard_gumbel_and_uncorrelated() -> None:
    vocab = 20_000
    noise = Noise(vocab, "cpu")
    sample = rows(noise, *(noise_key(seed, position) for seed in range(5) for position in range(2)))
    sample = sample.double()
    n = sample.numel()
    assert sample.mean().item() == pytest.approx(0.57722, abs=5 * 1.2825 / math.sqrt(n))
    assert sample.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    # Kolmogorov-Smirnov distance to the Gumbel distribution.
    ordered = sample.flatten().sort().values
    cdf = torch.exp(-torch.exp(-ordered))
    distance = (cdf - (torch.arange(n) + 0.5) / n).abs().max().item()
    assert distance < 1.95 / math.sqrt(n)
    # Neighbours in token (both halves of a hash, and across hashes), position and seed.
    centred = (sample - sample.mean()) / sample.std()
    for a, b in [
        (centred[:, 0::2], centred[:, 1::2]),
        (centred[:, 1:-1:2], centred[:, 2::2]),
        (centred[0::2], centred[1::2]),
        (centred[:-2], centred[2:]),
    ]:
        product = a * b
        assert abs(product.mean().item()) < 4 / math.sqrt(product.numel())

"""Codecs: their payloads by hand, their sizes, and what is right on average."""

import pytest
import torch

from pfl.core.seeds import derive
from pfl.extras.codecs import QSGD, Cast, Identity, RandK, Sign, TopK
from pfl.extras.codecs.coding import codecs, make_codec

F64 = torch.float64


def decoded(codec, value, key=0):
    return codec.decode(codec.encode(value, key), torch.zeros_like(value))


def keys(count):
    return [derive(0, "test", number) for number in range(count)]


def test_identity_sends_every_bit():
    value = torch.tensor([[1.0, -0.0], [float("nan"), 1e-30]])
    assert decoded(Identity(), value).view(torch.int32).equal(value.view(torch.int32))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    # 1 + 2^-9 lies between 1 and 1 + 2^-7 (8 bits), and is exact in 11 bits; 70,000 = 136.7 * 2^9
    # is rounded to 137 * 2^9 in 8 bits, and beyond the largest number in float16.
    [("bfloat16", [1.0, 137 * 2.0**9]), ("float16", [1 + 2.0**-9, 65_504.0])],
)
def test_a_cast_rounds_to_16_bits(dtype, expected):
    value = torch.tensor([1 + 2.0**-9, 70_000.0])
    assert Cast(dtype).encode(value, 0)["value"].element_size() == 2
    assert decoded(Cast(dtype), value).tolist() == expected


def test_qsgd_has_the_levels_of_the_paper():
    """v = (3, -4, 0, 0) has norm 5. With s = 1 level, 3 is sent as 0 or 5, -4 as 0 or -5."""
    value = torch.tensor([3.0, -4.0, 0.0, 0.0], dtype=F64)
    drawn = torch.stack([decoded(QSGD(bits=2), value, key) for key in keys(400)])
    assert set(drawn[:, 0].tolist()) == {0.0, 5.0}
    assert set(drawn[:, 1].tolist()) == {0.0, -5.0}
    assert set(drawn[:, 2:].flatten().tolist()) == {0.0}
    # Bernoulli draws of 3/5 and 4/5, whose means over 400 have deviations of 0.12 and 0.1.
    torch.testing.assert_close(drawn.mean(0), value, rtol=0, atol=0.4)


def test_qsgd_is_exact_at_a_level():
    """(6, -8, 0): norm 10, s = 7 is no matter: |v| / norm = 1 at the only number of a bucket."""
    value = torch.tensor([6.0, -8.0, 0.0, 1e-3], dtype=F64)
    assert decoded(QSGD(bits=4, bucket=1), value).tolist() == value.tolist()


def test_buckets_have_norms_of_their_own():
    value = torch.tensor([3.0, 4.0, 30.0, 40.0, 7.0])
    assert QSGD(bucket=2).encode(value, 0)["norm"].tolist() == [5.0, 50.0, 7.0]


@pytest.mark.long
@pytest.mark.parametrize("codec", [QSGD(bits=3, bucket=7), RandK(0.3)], ids=["qsgd", "randk"])
def test_qsgd_and_randk_are_unbiased(codec):
    """The mean of 4,000 draws lies within five of its deviations, number by number."""
    value = torch.randn(20, dtype=F64, generator=torch.Generator().manual_seed(1))
    drawn = torch.stack([decoded(codec, value, key) for key in keys(4000)])
    deviation = drawn.std(0) / 4000**0.5
    assert ((drawn.mean(0) - value).abs() <= 5 * deviation).all()
    assert (deviation > 0).all()


def test_topk_sends_the_largest_numbers_and_their_places():
    value = torch.tensor([[1.0, -5.0, 0.5], [3.0, -3.0, 0.0]])
    payload = TopK(share=0.5).encode(value, 0)
    assert payload["value"].tolist() == [-5.0, 3.0, -3.0]
    # The places 1, 3 and 4 of 6, three bits each, the lowest first: 100 110 00|1.
    assert payload["place"].tolist() == [0b00011001, 0b1]
    assert decoded(TopK(share=0.5), value).tolist() == [[0.0, -5.0, 0.0], [3.0, -3.0, 0.0]]


def test_equal_numbers_are_sent_in_their_order():
    assert decoded(TopK(share=0.5), torch.ones(4)).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_at_least_one_number_is_sent():
    assert decoded(TopK(share=0.01), torch.tensor([1.0, 2.0])).tolist() == [0.0, 2.0]
    assert TopK(share=0.29).encode(torch.ones(100), 0)["value"].shape == (29,)


def test_randk_sends_some_numbers_enlarged_and_the_key_of_their_places():
    value = torch.arange(1.0, 11.0)
    payload = RandK(share=0.2).encode(value, 7)
    sent = decoded(RandK(share=0.2), value, 7)
    assert (sent != 0).sum() == 2
    assert sent[sent != 0].tolist() == (5 * value[sent != 0]).tolist()
    assert payload["key"].item() == 7
    assert {name: v.numel() for name, v in payload.items()} == {"value": 2, "key": 1}


def test_sign_sends_one_bit_a_number_and_the_mean_size():
    """|v|_1 / n = (1 + 2 + 0 + 5) / 4 = 2."""
    value = torch.tensor([1.0, -2.0, 0.0, 5.0])
    payload = Sign().encode(value, 0)
    assert payload["scale"].item() == 2.0
    assert payload["sign"].tolist() == [0b1101]
    assert decoded(Sign(), value).tolist() == [2.0, -2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("codec", "size"),
    # For 1,000 numbers of 4 bytes: half; 4 bits each and 2 norms; 10 numbers and 10 places of 10
    # bits (13 bytes); 10 numbers and a key; 1 bit each and the scale.
    [
        ("identity", 4000),
        ("cast", 2000),
        (QSGD(bits=4, bucket=500), 500 + 8),
        (TopK(0.01), 40 + 13),
        (RandK(0.01), 40 + 8),
        ("sign", 125 + 4),
    ],
    ids=str,
)
def test_payloads_are_as_small_as_they_can_be(codec, size):
    payload = make_codec(codec).encode(torch.randn(1000), 3)
    assert sum(v.numel() * v.element_size() for v in payload.values()) == size


@pytest.mark.parametrize("name", codecs())
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_codecs_keep_shapes_and_types_and_draw_by_the_key_alone(name, dtype):
    codec = make_codec(name)
    value = torch.randn(5, 3, 7, dtype=dtype, generator=torch.Generator().manual_seed(2))
    first, again = decoded(codec, value, 9), decoded(codec, value, 9)
    assert first.shape == value.shape
    assert first.dtype == dtype
    assert first.equal(again)
    assert decoded(codec, torch.zeros(1, dtype=dtype)).tolist() == [0.0]
    assert decoded(codec, torch.zeros(0 + 3, dtype=dtype)).tolist() == [0.0] * 3


@pytest.mark.parametrize("name", codecs())
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (700,)])
def test_what_is_encoded_passes_the_check_and_another_tensor_s_payload_does_not(name, dtype, shape):
    codec = make_codec(name)
    value = torch.randn(shape, generator=torch.manual_seed(0), dtype=dtype)
    codec.check(codec.encode(value, 7), value)
    other = torch.zeros(1000, dtype=dtype)
    with pytest.raises(ValueError, match="instead of"):
        codec.check(codec.encode(value, 7), other)


@pytest.mark.parametrize("name", codecs())
def test_a_tensor_without_numbers_is_sent(name):
    """As of a layer of which no channel is shared."""
    codec, value = make_codec(name), torch.zeros(3, 0)
    parts = codec.encode(value, 0)
    assert all(part.isfinite().all() for part in parts.values())
    codec.check(parts, value)
    assert codec.decode(parts, value).shape == (3, 0)


@pytest.mark.parametrize("name", ["cast", "topk", "sign"])
def test_what_is_remembered_is_sent_later(name):
    """A vector that is sent again and again arrives, on average, whole."""
    codec, value = make_codec(name), torch.tensor([0.1, -1.0, 0.01, 0.3], dtype=F64)
    assert codec.remembers
    residual, total = torch.zeros_like(value), torch.zeros_like(value)
    for _ in range(200):
        sent = decoded(codec, value + residual)
        residual, total = value + residual - sent, total + sent
    torch.testing.assert_close(total + residual, 200 * value, rtol=0, atol=1e-12)
    torch.testing.assert_close(total / 200, value, rtol=0, atol=0.02)


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"no codec 'gzip'.*identity, cast"):
        make_codec("gzip")
    with pytest.raises(ValueError, match=r"share.*\(0, 1\].* 0"):
        TopK(share=0)
    with pytest.raises(ValueError, match=r"bits.*\[2, 8\].* 1"):
        QSGD(bits=1)

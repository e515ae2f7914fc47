"""Packed matrices against float64 products of what gguf-py decodes."""

from __future__ import annotations

import pytest
import torch
from packed_blocks import EXACT, FLOAT_DTYPES, random_blocks, reference_values, same_bytes
from torch import Tensor

from mrs.errors import BadIndex
from mrs.formats import FORMATS
from mrs.kernels.cpu.library import NativeLibrary, native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.packed_layout import FLOAT_FORMATS, PACKED_FORMATS, packed_bytes
from mrs.kernels.workspace.products import NARROW_TOKENS, TILED_PATHS

pytestmark = pytest.mark.usefixtures("library")

#: Three full groups of rows and one of three, two blocks of the largest format.
ROWS, COLUMNS = 51, 512
#: So many tokens are multiplied by tiles.
LEAST_SPLIT = NARROW_TOKENS + 1


def packed(name: str, blocks: Tensor, columns: int = COLUMNS) -> PackedMatrix:
    matrix = PackedMatrix(name, blocks.shape[0], columns)
    matrix.fill(blocks)
    return matrix


def is_split(name: str) -> bool:
    """Whether many tokens are multiplied as sums of two bf16."""
    library = native_library()
    is_tiled = library is not None and library.path in TILED_PATHS
    return is_tiled and name in FLOAT_FORMATS and name not in ("BF16", "F32")


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", PACKED_FORMATS)
class TestPackedMatrix:
    @pytest.mark.values
    def test_keeps_every_value(self, name: str) -> None:
        blocks = random_blocks(name, ROWS, COLUMNS)
        matrix, expected = packed(name, blocks), reference_values(name, blocks)
        assert torch.equal(matrix.decode(), expected)
        ids = torch.tensor([50, 0, 17, 17])
        assert torch.equal(matrix.rows(ids, torch.float32), expected[ids])

    @pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8, 12, 16, 17, 21, 70])
    def test_multiplies(self, name: str, tokens: int) -> None:
        blocks = random_blocks(name, ROWS, COLUMNS)
        x = torch.randn(tokens, COLUMNS, generator=torch.Generator().manual_seed(tokens))
        expected = x.double() @ reference_values(name, blocks).double().T
        limit = 2e-3 if name in EXACT else 1e-2
        assert relative_error(packed(name, blocks).matmul(x), expected) < limit

    @pytest.mark.values
    def test_multiplies_bf16(self, name: str) -> None:
        blocks = random_blocks(name, ROWS, COLUMNS)
        x = torch.randn(3, COLUMNS, generator=torch.Generator().manual_seed(0)).bfloat16()
        expected = x.double() @ reference_values(name, blocks).double().T
        result = packed(name, blocks).matmul(x)
        assert result.dtype == torch.bfloat16
        limit = 2e-3 if name in EXACT else 1e-2
        assert relative_error(result, expected) < limit

    @pytest.mark.values
    def test_threads_change_nothing(self, name: str) -> None:
        matrix = packed(name, random_blocks(name, 160, COLUMNS))
        x = torch.randn(40, COLUMNS, generator=torch.Generator().manual_seed(0))
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append((matrix.matmul(x[:1]), matrix.matmul(x), matrix.decode()))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                assert torch.equal(a, b)

    @pytest.mark.values
    def test_multiplies_permuted_columns(self, name: str) -> None:
        blocks = random_blocks(name, ROWS, COLUMNS)
        order = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(0))
        x = torch.randn(21, COLUMNS, generator=torch.Generator().manual_seed(1))
        plain, permuted = packed(name, blocks), packed(name, blocks)
        permuted.permute(order)
        for some in (x[:1], x, x.bfloat16()):
            assert torch.equal(permuted.matmul(some), plain.matmul(some[:, order]))
        assert torch.equal(permuted.decode()[:, order], plain.decode())

    @pytest.mark.values
    @pytest.mark.parametrize("is_permuted", [False, True])
    def test_adds_residuals(self, name: str, is_permuted: bool) -> None:
        """Values of 8 bits, and those of what they leave, give nearly the product in float32."""
        blocks = random_blocks(name, ROWS, COLUMNS)
        x = torch.randn(70, COLUMNS, generator=torch.Generator().manual_seed(0))
        matrix = packed(name, blocks)
        if is_permuted:
            matrix.permute(torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(1)))
        matrix.add_residuals()
        whole = matrix.matmul(x)
        expected = x.double() @ matrix.decode().double().T
        assert relative_error(whole, expected) < 1e-4
        for some in (slice(0, 1), slice(1, 4), slice(4, 13), slice(13, 30), slice(30, 69)):
            if not is_split(name):
                assert torch.equal(matrix.matmul(x[some]), whole[some])

    @pytest.mark.values
    def test_is_filled_piece_by_piece(self, name: str) -> None:
        blocks = random_blocks(name, ROWS, COLUMNS)
        matrix = PackedMatrix(name, ROWS, COLUMNS)
        matrix.fill(blocks[32:], 32)
        matrix.fill(blocks[:32])
        assert torch.equal(matrix.decode(), reference_values(name, blocks))

    @pytest.mark.values
    def test_is_filled_by_rows_that_a_step_skips(self, name: str) -> None:
        """They are copied, and the copy has to live until it is packed."""
        blocks = random_blocks(name, 32, COLUMNS)
        expected = reference_values(name, blocks[::2].contiguous())
        assert torch.equal(packed(name, blocks[::2]).decode(), expected)

    @pytest.mark.values
    @pytest.mark.parametrize("tokens", [2, 17])
    @pytest.mark.parametrize("half", [0x0001, 0x03FF, 0x7BFF])
    def test_survives_extreme_blocks(self, name: str, half: int, tokens: int) -> None:
        generator = torch.Generator().manual_seed(0)
        for codes in (0x00, 0x7F, 0x80, 0xFF):
            blocks = same_bytes(name, 16, COLUMNS, codes, half)
            matrix, values = packed(name, blocks), reference_values(name, blocks).double()
            for factor in (0.0, 1e-45, 1e-30, 1.0, 1e25):
                x = (torch.rand(tokens, COLUMNS, generator=generator) - 0.25) * factor
                result, expected = matrix.matmul(x).double(), x.double() @ values.T
                # Where weights cancel, errors are measured against what was added up.
                size = x.abs().double() @ values.abs().T
                in_range = size < 1e38
                assert in_range.all() or factor >= 1.0
                assert result[in_range].isfinite().all()
                # Subnormal activations may count as 0.
                allowed = 1e-2 * size + 1.2e-38 * values.abs().sum(1) + 1e-30
                assert ((result - expected).abs() <= allowed)[in_range].all()

    @pytest.mark.values
    @pytest.mark.parametrize("tokens", [1, 17])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_sums_of_the_largest_codes_fit(self, name: str, sign: int, tokens: int) -> None:
        """Sums of fewer bits than 32 must not overflow."""
        for codes in (0x77, 0x7F, 0xFF):
            blocks = same_bytes(name, 16, COLUMNS, codes, 0x03FF)
            values = reference_values(name, blocks).double()
            x = torch.full((tokens, COLUMNS), 127.0 * sign)
            size = float((x.abs().double() @ values.abs().T).max())
            torch.testing.assert_close(
                packed(name, blocks).matmul(x).double(),
                x.double() @ values.T,
                rtol=0,
                atol=1e-4 * size,
            )

    @pytest.mark.values
    def test_tells_its_size(self, name: str, library: NativeLibrary) -> None:
        for rows, columns in ((1, 256), (16, 512), (51, 768), (4096, 2048)):
            expected = packed_bytes(FORMATS[name], rows, columns)
            assert expected == library.functions.mrs_packed_bytes(
                PACKED_FORMATS.index(name), rows, columns
            )
        assert packed(name, random_blocks(name, ROWS, COLUMNS)).nbytes == packed_bytes(
            FORMATS[name], ROWS, COLUMNS
        )


@pytest.mark.values
@pytest.mark.parametrize("name", PACKED_FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(51, 512), (40, 4608)])
def test_rows_of_a_batch_are_multiplied_as_alone(name: str, rows: int, columns: int) -> None:
    """With any number of tokens and threads; an odd number of groups, several blocks of columns."""
    matrix = packed(name, random_blocks(name, rows, columns), columns)
    x = torch.randn(300, columns, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([matrix.matmul(row[None]) for row in x])
    for tokens in (2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 20, 31, 64, 100, 129, 300):
        if tokens == LEAST_SPLIT and is_split(name):
            # Other rounding, from here on the same again.
            assert relative_error(matrix.matmul(x), alone.double()) < 1e-5
            alone = matrix.matmul(x)
        assert torch.equal(matrix.matmul(x[-tokens:]), alone[-tokens:]), tokens


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("rows", [16, 48, 700])
def test_prompts_of_several_panels(name: str, rows: int) -> None:
    """The last panel is only filled in part."""
    columns, tokens = 1280, 600
    blocks = random_blocks(name, rows, columns)
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(0))
    expected = x.double() @ reference_values(name, blocks).double().T
    assert relative_error(packed(name, blocks, columns).matmul(x), expected) < 1e-2


@pytest.mark.parametrize("name", FLOAT_DTYPES)
@pytest.mark.parametrize("columns", [1, 31, 48, 65])
def test_floats_of_any_width(name: str, columns: int) -> None:
    blocks = random_blocks(name, 20, columns)
    matrix, expected = packed(name, blocks, columns), reference_values(name, blocks)
    assert torch.equal(matrix.decode(), expected)
    assert matrix.nbytes == packed_bytes(FORMATS[name], 20, columns)
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0))
    # Some paths round the activations to bf16, which has 8 bits.
    assert relative_error(matrix.matmul(x), x.double() @ expected.double().T) < 2**-8


@pytest.mark.parametrize("tokens", [4, 8, 33])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_subnormal_weights_count(is_wrapped: bool, tokens: int) -> None:
    """In some groups of rows only; some processors' units for bf16 take them for 0."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(48, COLUMNS, generator=generator).bfloat16()
    weights[16:32] *= 1e-39
    weights[40, 3] = -1e-39
    matrix = packed("BF16", weights.view(torch.uint8))
    if is_wrapped:
        matrix = PackedMatrix.wrap(matrix.data, "BF16", 48, COLUMNS)
    x = torch.rand(tokens, COLUMNS, generator=generator) * 1e35
    result, expected = matrix.matmul(x).double(), x.double() @ weights.double().T
    size = x.double() @ weights.abs().double().T
    assert ((result - expected).abs() <= 4e-3 * size).all()


@pytest.mark.parametrize("tokens", [2, 20])
def test_not_a_number_stays_visible(tokens: int) -> None:
    matrix = packed("Q4_K", random_blocks("Q4_K", 16, COLUMNS))
    x = torch.ones(tokens, COLUMNS)
    x[1, 300] = float("nan")
    result = matrix.matmul(x)
    assert result[0].isfinite().all()
    assert result[1].isnan().all()
    assert result[2:].isfinite().all()


def test_activations_that_are_no_rows_of_memory() -> None:
    blocks = random_blocks("Q8_0", 16, COLUMNS)
    matrix = packed("Q8_0", blocks)
    x = torch.randn(COLUMNS, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(matrix.matmul(x.T), matrix.matmul(x.T.contiguous()))
    half = x.T.half()
    assert torch.equal(matrix.matmul(half), matrix.matmul(half.float()).half())
    assert matrix.matmul(torch.empty(0, COLUMNS)).shape == (0, 16)


def test_refuses_what_does_not_fit() -> None:
    matrix = PackedMatrix("Q8_0", 51, COLUMNS)
    blocks = random_blocks("Q8_0", 51, COLUMNS)
    with pytest.raises(ValueError, match="groups"):
        matrix.fill(blocks[:20])
    with pytest.raises(ValueError, match="groups"):
        matrix.fill(blocks[:32], 32)
    with pytest.raises(ValueError, match="bytes"):
        matrix.fill(blocks[:, :-34])
    with pytest.raises(ValueError, match="columns"):
        matrix.matmul(torch.ones(1, COLUMNS + 1))
    with pytest.raises(ValueError, match="blocks"):
        PackedMatrix("Q4_K", 16, 128)
    with pytest.raises(BadIndex):
        matrix.rows(torch.tensor([51]), torch.float32)

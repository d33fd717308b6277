"""The peers of Edgewise's attention, all in PyTorch's process. Every peer is a Contender: time(first, repeats) gives
the milliseconds of one run, of `repeats` between two events, over the copies of the inputs in turn."""

import ours
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DELTA = 0.0  # what the authors add to the rates; ours draws without it here


class Contender:
    def __init__(self, name, time, output=None, peak_bytes=None, close=None):
        self.name, self.time, self.output = name, time, output
        self.peak_bytes, self.close = peak_bytes, close or (lambda: None)


def torch_contender(name, clock, copies, run, context=None):
    """run(copy) enqueues one run and returns its output."""

    def enqueue(first, repeats):
        if context is None:
            for r in range(repeats):
                run((first + r) % copies)
        else:
            with context():
                for r in range(repeats):
                    run((first + r) % copies)

    def output():
        if context is None:
            return run(0)
        with context():
            return run(0)

    return Contender(
        name,
        lambda first, repeats: clock.time(lambda: enqueue(first, repeats)) / repeats,
        output,
        lambda: clock.peak_bytes(lambda: enqueue(0, 1)),
    )


def scaled_dot_product(name, backend, dtype, inputs, clock):
    q, k, v = (
        [inputs.heads_first(copy, dtype) for copy in matrices] for matrices in (inputs.q, inputs.k, inputs.v)
    )
    return torch_contender(
        name,
        clock,
        inputs.copies,
        lambda c: F.scaled_dot_product_attention(q[c], k[c], v[c]),
        None if backend is None else lambda: sdpa_kernel(backend),
    )


def dense_peers(inputs, clock, dry_run):
    """(name, make) of those that attend over all pairs."""
    bf16, fp32 = torch.bfloat16, torch.float32
    backends = [
        ("sdpa_flash_bf16", SDPBackend.FLASH_ATTENTION, bf16),
        ("sdpa_cudnn_bf16", SDPBackend.CUDNN_ATTENTION, bf16),
        ("sdpa_efficient_fp32", SDPBackend.EFFICIENT_ATTENTION, fp32),
        ("sdpa_math_fp32", SDPBackend.MATH, fp32),
    ]
    return [
        (name, lambda name=name, backend=backend, dtype=dtype: scaled_dot_product(
            name, None if dry_run else backend, dtype, inputs, clock))
        for name, backend, dtype in backends
    ]  # fmt: skip


def dense_masked(inputs, clock):
    """The computation of the SBM-Transformer's published code, which has every matrix of pairs in memory: rates, a
    Bernoulli mask of them, the softmax of all scores, masked and normalised again. From rates of rank 32, where theirs
    multiplies memberships of 128 clusters, and without their mask of pads: both cost it less than theirs costs."""
    q, k, v = ([inputs.heads_first(copy) for copy in matrices] for matrices in (inputs.q, inputs.k, inputs.v))
    x, y = ([inputs.memberships_of(copy) for copy in matrices] for matrices in (inputs.x, inputs.y))

    def run(c):
        rates = torch.clamp(x[c] @ y[c].transpose(-1, -2) + DELTA, 0.0, 1.0)
        graph = torch.bernoulli(rates)
        scores = q[c] @ k[c].transpose(-1, -2) * inputs.shape.scale
        weights = F.normalize(torch.softmax(scores, dim=-1) * graph, p=1, dim=-1)
        return weights @ v[c]

    return torch_contender("authors_fp32", clock, inputs.copies, run)


class Flex:
    """FlexAttention over a mask in memory. One compilation for each shape and type: the mask is filled anew for other
    edges. Its block mask is made before the clock starts, and timed on its own."""

    def __init__(self, inputs, clock, dry_run):
        from torch.nn.attention import flex_attention as flex

        shape, device = inputs.shape, inputs.q[0].device
        self._flex, self._clock, self._inputs = flex, clock, inputs
        self._mask = torch.zeros(shape.batch, shape.heads, shape.n, shape.n, dtype=torch.bool, device=device)
        mask = self._mask
        self._mask_mod = lambda b, h, i, j: mask[b, h, i, j]
        torch._dynamo.reset()
        self._attend = flex.flex_attention if dry_run else torch.compile(flex.flex_attention, dynamic=False)
        self._operands = {}

    def contender(self, dtype, name, edges):
        shape = self._inputs.shape
        edges.fill_mask(self._mask)

        def make_block_mask():
            return self._flex.create_block_mask(
                self._mask_mod, shape.batch, shape.heads, shape.n, shape.n, device=self._mask.device
            )

        make_block_mask()
        self.block_mask_ms = self._clock.time(make_block_mask)
        block_mask = make_block_mask()
        if dtype not in self._operands:
            self._operands[dtype] = [
                [self._inputs.heads_first(copy, dtype) for copy in matrices]
                for matrices in (self._inputs.q, self._inputs.k, self._inputs.v)
            ]
        q, k, v = self._operands[dtype]
        return torch_contender(
            name, self._clock, self._inputs.copies, lambda c: self._attend(q[c], k[c], v[c], block_mask=block_mask)
        )


def cusparse(library, inputs, edges):
    """The three steps, unfused, over the given edges; the making of their matrix is not timed."""
    shape = inputs.shape
    q, k, v = ([inputs.heads_first(copy) for copy in matrices] for matrices in (inputs.q, inputs.k, inputs.v))
    out = [torch.zeros_like(copy) for copy in q]
    offsets, keys = edges.block_diagonal()
    problems = [
        ours.CusparseProblem(
            rows=shape.batch_heads * shape.n, edges=edges.count, head_dim=shape.head_dim, scale=shape.scale,
            row_offsets=offsets.data_ptr(), keys=keys.data_ptr(), q=q[c].data_ptr(), k=k[c].data_ptr(),
            v=v[c].data_ptr(), out=out[c].data_ptr(),
        )  # fmt: skip
        for c in range(min(inputs.copies, 8))  # each has values of its own for every edge
    ]
    torch.cuda.synchronize()
    opened = ours.Cusparse(library, problems)
    kept = (q, k, v, out, offsets, keys)

    def output():
        opened.time(0, 1)
        return kept[3][0]

    return Contender("cusparse_fp32", opened.time, output, None, opened.close)

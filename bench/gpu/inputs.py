"""Operands of the GPU benchmark, in several copies that together do not fit into the L2 cache, and the edges that ours
draws from them, as the peers want them."""

import ctypes
import math

import ours
import torch

MEAN_COSINE = 0.9
SEED = 2026
MAX_COPIES = 128
MAX_EDGES = 2**31 - 1  # cuSPARSE's 32-bit offsets, and 8 GB of keys


def emulated_memory(library):
    """place() for a dry run: copies a tensor into the emulator's device memory, which is never freed."""
    allocate = ctypes.CDLL(library)["_Z10cudaMallocPPvm"]
    allocate.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]

    def place(tensor):
        memory, size = ctypes.c_void_p(), max(tensor.numel() * tensor.element_size(), 1)
        assert allocate(ctypes.byref(memory), size) == 0
        raw = (ctypes.c_char * size).from_address(memory.value)
        return torch.frombuffer(raw, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape).copy_(tensor)

    return place


class Shape:
    def __init__(self, n, head_dim, batch_heads):
        self.n, self.head_dim, self.batch_heads = n, head_dim, batch_heads
        self.heads = min(batch_heads, 8)
        self.batch = batch_heads // self.heads
        self.scale = 1 / math.sqrt(head_dim)
        self.pairs = batch_heads * n * n

    def __str__(self):
        return f"n={self.n} d={self.head_dim} batch x heads={self.batch_heads}"


class Inputs:
    """Normal q, k, v and memberships around a common direction (as selfcheck/synthetic.cc), `copies` of them."""

    def __init__(self, shape, rank, cache_bytes, device, place):
        self.shape, self.rank, self.place = shape, rank, place
        rows, width = shape.batch * shape.n, shape.heads * shape.head_dim
        bytes_of_copy = 4 * rows * (3 * width + 2 * shape.heads * rank)
        self.copies = min(MAX_COPIES, 1 + math.ceil(2 * cache_bytes / bytes_of_copy))
        generator = torch.Generator(device=device).manual_seed(17)

        def normal(*size):
            return torch.randn(*size, device=device, generator=generator)

        self.q, self.k, self.v = ([place(normal(rows, width)) for _ in range(self.copies)] for _ in range(3))
        self.out = [place(torch.empty_like(self.q[0])) for _ in range(self.copies)]
        noise = math.sqrt((1 / MEAN_COSINE - 1) / rank)
        self.unit_x, self.unit_y = (
            [rank**-0.5 + noise * normal(shape.heads, rows, rank) for _ in range(self.copies)] for _ in range(2)
        )
        self._samples = self._sample_products()
        self.x = self.y = None

    def _sample_products(self):
        """<x_i, y_j> of pairs of the first sequence and head."""
        generator = torch.Generator().manual_seed(23)
        i, j = torch.randint(self.shape.n, (2, 20000), generator=generator)
        x, y = (side[0][0, : self.shape.n].double().cpu() for side in (self.unit_x, self.unit_y))
        return (x[i] * y[j]).sum(1)

    def set_density(self, density):
        """Scales the memberships so that the mean of min(1, p) is `density`; all pairs but a few at 1."""
        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            if (middle * self._samples).clamp(0, 1).mean() < min(density, 0.9999):
                low = middle
            else:
                high = middle
        root = math.sqrt(low)
        self.x, self.y = ([self.place(root * side) for side in sides] for sides in (self.unit_x, self.unit_y))
        self.query_bound, self.key_bound = (
            [self.place(side.norm(dim=-1) * 1.000001) for side in sides] for sides in (self.x, self.y)
        )

    def call(self, copy, edges=None):
        shape = self.shape
        return ours.Call(
            n=shape.n, batch=shape.batch, heads=shape.heads, head_dim=shape.head_dim, rank=self.rank, seed=SEED,
            q=self.q[copy].data_ptr(), k=self.k[copy].data_ptr(), v=self.v[copy].data_ptr(),
            out=self.out[copy].data_ptr(), x=self.x[copy].data_ptr(), y=self.y[copy].data_ptr(),
            query_bound=self.query_bound[copy].data_ptr(), key_bound=self.key_bound[copy].data_ptr(),
            row_offsets=edges.row_offsets.data_ptr() if edges else None, keys=edges.keys.data_ptr() if edges else None,
        )  # fmt: skip

    def heads_first(self, tensor, dtype=torch.float32):
        """[batch, heads, n, head_dim], contiguous: what the peers take."""
        shape = self.shape
        return tensor.view(shape.batch, shape.n, shape.heads, -1).transpose(1, 2).to(dtype).contiguous()

    def memberships_of(self, tensor):
        """[batch, heads, n, rank]."""
        shape = self.shape
        return tensor.view(shape.heads, shape.batch, shape.n, self.rank).transpose(0, 1).contiguous()


class Edges:
    """The edges that ours draws from the first copy. Their number alone where there are more than `most`."""

    def __init__(self, bench, inputs, most):
        shape = inputs.shape
        self.shape = shape
        self.count = bench.draw(inputs.call(0), most)
        self.listed = self.count <= most
        if not self.listed:
            return
        device = inputs.q[0].device
        row_edges = inputs.place(torch.zeros(shape.batch_heads, shape.n, dtype=torch.int32, device=device))
        self.keys = inputs.place(torch.full((self.count,), -1, dtype=torch.int32, device=device))
        bench.list_edges(row_edges.data_ptr(), self.keys.data_ptr())
        self.row_edges = row_edges.long()
        ends = self.row_edges.view(-1).cumsum(0).view_as(self.row_edges)
        self.row_offsets = inputs.place(torch.cat([ends[:, :1] - self.row_edges[:, :1], ends], dim=1).contiguous())

    def _rows(self):
        """For every edge, its row among all heads' rows."""
        all_rows = torch.arange(self.row_edges.numel(), device=self.row_edges.device)
        return torch.repeat_interleave(all_rows, self.row_edges.view(-1), output_size=self.count)

    def block_diagonal(self):
        """Offsets and keys of one matrix of all heads, int32."""
        zero = torch.zeros(1, dtype=torch.int64, device=self.row_edges.device)
        offsets = torch.cat([zero, self.row_edges.view(-1).cumsum(0)]).int()
        head = torch.div(self._rows(), self.shape.n, rounding_mode="floor").int()
        return offsets, head * self.shape.n + self.keys

    def fill_mask(self, mask):
        """mask [batch, heads, n, n] of bool."""
        mask.zero_()
        mask.view(-1)[self._rows() * self.shape.n + self.keys] = True

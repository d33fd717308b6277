"""The figures that sparse layers and models are held to on a GPU: ratios of times of one run, and what they must be. A
layer is its memberships, drawing and attending."""

import typing


class Layer(typing.NamedTuple):
    n: int
    batch_heads: int
    density: float
    rank: int = 32
    precisions: tuple = ("bf16",)
    head_dim: int = 64


# Those of one shape behind each other. PEERS: PyTorch's attention over all pairs.
LAYERS = [
    Layer(4096, 64, 0.0025), Layer(4096, 64, 0.01, precisions=("bf16", "fp32")), Layer(4096, 64, 0.1), Layer(4096, 64, 1.0),
    Layer(4096, 64, 0.0025, rank=128), Layer(4096, 64, 0.01, rank=128), Layer(4096, 64, 0.1, rank=128),
    Layer(4096, 64, 1.0, rank=128), Layer(16384, 64, 0.0025), Layer(32768, 8, 0.0025),
]  # fmt: skip
DRY_LAYERS = [Layer(64, 2, 0.1, precisions=("bf16", "fp32"), head_dim=16), Layer(64, 2, 1.0, rank=128, head_dim=16)]
PEERS = ("sdpa_flash_bf16", "sdpa_cudnn_bf16", "sdpa_efficient_fp32")
CUDNN, SDPA_FP32 = "sdpa_cudnn_bf16", "sdpa_efficient_fp32"


class Figure(typing.NamedTuple):
    what: str
    value: float | None  # None: not measured
    at_most: bool  # else at least
    bound: float


def of_layers(rows):
    """rows: of report.make_row."""

    def ratio(n, batch_heads, density, peer, rank=32, precision="bf16", of_peer=False):
        """Layer over peer, or with of_peer peer over layer. peer: a name, or "dense", ours over all pairs."""
        for row in rows:
            key = (row["n"], row["batch_heads"], row["target_density"], row["rank"], row["precision"])
            if key != (n, batch_heads, density, rank, precision):
                continue
            other = row["ours_dense_ms"] if peer == "dense" else row["peers"].get(peer)
            if other and row["ours_ms"] and row["membership_ms"]:
                layer = row["membership_ms"] + row["ours_ms"]
                return other / layer if of_peer else layer / other
        return None

    return [
        Figure("bf16, 4,096 x 64, 1 %: layer over cuDNN's dense", ratio(4096, 64, 0.01, CUDNN), True, 1.6),
        Figure("bf16, 4,096 x 64, 0.25 %: layer over cuDNN's dense", ratio(4096, 64, 0.0025, CUDNN), True, 1.1),
        Figure("bf16, 4,096 x 64, 1 %, rank 128: layer over cuDNN's dense", ratio(4096, 64, 0.01, CUDNN, 128), True, 1.8),
        Figure("bf16, 16,384 x 64, 0.25 %: cuDNN's dense over layer",
               ratio(16384, 64, 0.0025, CUDNN, of_peer=True), False, 1.8),
        Figure("bf16, 32,768 x 8, 0.25 %: cuDNN's dense over layer",
               ratio(32768, 8, 0.0025, CUDNN, of_peer=True), False, 1.7),
        Figure("bf16, 4,096 x 64, 10 %: layer over own dense", ratio(4096, 64, 0.1, "dense"), True, 2.6),
        Figure("bf16, 4,096 x 64, 100 %: layer over own dense", ratio(4096, 64, 1.0, "dense"), True, 2.6),
        Figure("fp32, 4,096 x 64, 1 %: SDPA's float32 over layer",
               ratio(4096, 64, 0.01, SDPA_FP32, precision="fp32", of_peer=True), False, 5.0),
    ]  # fmt: skip


SBM_CASE = (0.0025, 16384)  # density, tokens; of models_gpu.py


def of_models(rows):
    """rows: of models_gpu.py."""
    found = {(row["case"], row["precision"]): row for row in rows}
    sbm = f"sbm {SBM_CASE[0]:.2%}, {SBM_CASE[1]} tokens"

    def ratio(case, precision, one, other):
        row = found.get((case, precision), {})
        return row[one] / row[other] if one in row and other in row else None

    def long_ratio(one, other):
        times = {way.partition(",")[0]: value["compute_ms"] for way, value in found.get(("long", "bf16"), {}).items()
                 if isinstance(value, dict) and way.endswith(", 1 samples")}  # fmt: skip
        return times[one] / times[other] if one in times and other in times else None

    figures = []
    for precision, least in (("bf16", 3.0), ("fp32", 5.0)):
        figures += [
            Figure(f"{precision}, SBM model, 16,384 tokens, 0.25 %: own dense over sparse",
                   ratio(sbm, precision, "dense_ms", "own_ms"), False, least),
            Figure(f"{precision}, SBM model, 16,384 tokens, 0.25 %: a cap at a tenth over free",
                   ratio(sbm, precision, "cap_of_a_tenth_ms", "own_ms"), True, 0.85),
        ]  # fmt: skip
    return figures + [Figure("bf16, long: own edges over dense", long_ratio("no cap", "dense"), True, 1.15),
                      Figure("bf16, long: a cap of 1 % over own edges", long_ratio("cap 1 %", "no cap"), True, 1.1)]


def print_figures(figures):
    print(f"\n{'figure':<68} {'is':>8} {'must be':>10}")
    for figure in figures:
        bound = f"{'<=' if figure.at_most else '>='} {figure.bound:g}"
        value, met = "-", "not measured"
        if figure.value is not None:
            value = f"{figure.value:.2f}"
            met = "met" if (figure.value <= figure.bound) == figure.at_most or figure.value == figure.bound else "MISSED"
        print(f"{figure.what:<68} {value:>8} {bound:>10}  {met}", flush=True)

"""The test models of tests/testdata: what each one's config.json has that differs from a small base.

`block_matrix` asks for that optional tensor; `inputs` names those of make_testdata.make_inputs that are used.
"""

_MEAN = {"kind": "mean", "divisor": "valid"}
_PADDED_MEAN = {"kind": "mean", "divisor": "max_length"}
_SBM = {"kind": "sbm", "num_clusters": 12, "law": "bernoulli", "exploration": 0.01}
_BASE = {
    "task": "sequence-classification",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
    "pooling": _MEAN,
    "num_labels": 5,
    "tokenizer": {"kind": "none"},
    "attention": {"kind": "dense"},
}
# A field that a case's config leaves out is None. Language models have no pads unless the case says so.
_SMALL = {
    "vocab_size": 24,
    "intermediate_size": 16,
    "tied_layers": True,
    "inputs": ("short", "one", "interior", "trailing", "both"),
}
_LM = {
    **_SMALL,
    "task": "causal-lm",
    "pooling": None,
    "num_labels": None,
    "pad_token_id": -1,
    "inputs": ("full", "short", "one"),
}
_LM_WITH_PADS = {**_LM, "pad_token_id": 0, "inputs": _SMALL["inputs"]}
_FEATURES = {"vocab_size": None, "feature_size": 6, "intermediate_size": 16, "tied_layers": True}


def _ssa(bias: str, **fields: object) -> dict:
    return {"kind": "ssa", "bias": bias, **fields}


def _block(size: object, pattern: str, **fields: object) -> dict:
    return {"kind": "block", "block_size": size, "pattern": pattern, **fields}


_CLASSIFIERS = {
    "dense": {},
    "dense-classifier-hidden": {"classifier_hidden_size": 20, "pooling": _PADDED_MEAN},
    "dense-tied-cls": {"tied_layers": True, "num_hidden_layers": 3, "pooling": {"kind": "cls"}, "cls_token_id": 39},
    "dense-pair": {"task": "pair-classification", "classifier_hidden_size": 20, "num_labels": 3},
    "dense-tokens": {"task": "token-classification", "pooling": None, "position_embedding": "sinusoidal"},
    "dense-post-norm": {"norm_position": "post", "hidden_act": "relu", "pad_token_id": -1, "layer_norm_eps": 1e-3},
    "dense-wide-heads": {"num_attention_heads": 3, "head_dim": 12, "position_embedding": "none", "pad_token_id": 7},
    "sbm": {"attention": _SBM},
    "sbm-padded-mean": {
        "attention": {**_SBM, "law": "poisson_set", "exploration": 0.05},
        "pooling": _PADDED_MEAN,
        "classifier_hidden_size": 20,
    },
    "sbm-tied": {"attention": {**_SBM, "self_loops": True}, "tied_layers": True, "num_hidden_layers": 3},
    "sbm-cls": {"attention": {**_SBM, "local_window": 5}, "pooling": {"kind": "cls"}, "cls_token_id": 39},
    "sbm-pair": {
        "task": "pair-classification",
        "attention": _SBM,
        "classifier_hidden_size": 20,
        "pooling": _PADDED_MEAN,
        "num_labels": 2,
    },
    "sbm-tokens": {
        "task": "token-classification",
        "attention": {**_SBM, "law": "poisson_multi"},
        "pooling": None,
        "num_hidden_layers": 1,
    },
    "sbm-post-norm": {"attention": {**_SBM, "exploration": 0.0}, "norm_position": "post"},
    "sbm-block-matrix": {
        "attention": {**_SBM, "num_clusters": 8},
        "num_attention_heads": 3,
        "head_dim": 8,
        "block_matrix": True,
    },
    "mixed-layers": {"attention": [_SBM, {"kind": "dense"}], "budget_shares": [2.0, 1.0]},
}

# Biases of the scores, features, regression.
_BIASES = {
    "relative": {**_SMALL, "position_embedding": "relative"},
    "alibi": {**_SMALL, "position_embedding": "alibi", "num_attention_heads": 6, "head_dim": 4},
    "pairwise-values": {**_SMALL, "pairwise_bias": {"kind": "values"}, "inputs": ("short", "one", "interior", "nine")},
    "pairwise-buckets": {
        **_SMALL,
        "pairwise_bias": {"kind": "buckets", "num_buckets": 9},
        "position_embedding": "none",
        "attention": _ssa("local", windows=3, sigma=0.2),
        "inputs": ("short", "one", "interior", "nine"),
    },
    "features-regression": {**_FEATURES, "task": "regression", "num_labels": 3, "pooling": _PADDED_MEAN},
    "features": {
        **_FEATURES,
        "num_labels": 4,
        "classifier_hidden_size": 12,
        "position_embedding": "none",
        "pairwise_bias": {"kind": "values"},
        "inputs": ("short", "one", "nine"),
    },
    "features-ssa-grid": {**_FEATURES, "attention": _ssa("local", windows=4, sigma=0.3, grid=[6, 8])},
    "regression": {**_SMALL, "task": "regression", "num_labels": 2},
}

_BLOCKS = {
    "block-diagonal": {**_SMALL, "attention": _block(10, "diagonal")},
    "block-local": {**_SMALL, "attention": _block(5, "local")},
    "block-local-wide": {**_SMALL, "attention": _block(5, "local", width=2)},
    "block-strided": {**_SMALL, "attention": _block(4, "strided", stride=3)},
    "block-adaptive": {**_SMALL, "attention": _block({"min": 4, "max": 12, "alpha": 0.29}, "first_and_diagonal")},
    "block-list": {**_SMALL, "attention": _block(14, "list", blocks=[[0, 1], [1, 1], [1, 3], [2, 0], [3, 3]])},
    "block-learned": {**_SMALL, "attention": _block(9, "learned", threshold=0.55)},
    "block-cls": {
        **_SMALL,
        "attention": [_block(7, "first_and_diagonal"), {"kind": "dense"}],
        "tied_layers": False,
        "pooling": {"kind": "cls"},
        "cls_token_id": 23,
    },
}

_SUBSAMPLES = {
    "ssa-local": {**_SMALL, "attention": _ssa("local", windows=5, sigma=0.15)},
    "ssa-local-many-windows": {**_SMALL, "attention": _ssa("local", windows=30, sigma=0.1)},
    "ssa-schedule": {
        **_SMALL,
        "attention": _ssa("local", windows=4, sigma=[0.05, 0.6], last_layers=2),
        "num_hidden_layers": 3,
        "pooling": {"kind": "cls"},
        "cls_token_id": 23,
        "inputs": ("short", "one", "interior", "nine"),
    },
    "ssa-none-keep": {**_SMALL, "attention": _ssa("none", keep=7), "position_embedding": "relative"},
    "ssa-none-windows": {**_SMALL, "attention": _ssa("none", windows=5)},
    "ssa-grid": {**_SMALL, "attention": _ssa("local", windows=4, sigma=0.25, grid=[6, 8])},
    "ssa-pair": {
        **_SMALL,
        "task": "pair-classification",
        "attention": [_ssa("local", windows=3, sigma=0.2), _ssa("none", keep=5)],
        "tied_layers": False,
    },
}

_LANGUAGE = {
    "lm-dense": {**_LM, "tied_layers": False},
    "lm-untied": {
        **_LM,
        "tied_layers": False,
        "tie_word_embeddings": False,
        "position_embedding": "sinusoidal",
        "norm_position": "post",
    },
    "lm-alibi": {
        **_LM_WITH_PADS,
        "position_embedding": "alibi",
        "num_attention_heads": 3,
        "head_dim": 8,
        "tie_word_embeddings": False,
    },
    "lm-relative": {**_LM, "position_embedding": "relative", "causal": True},
    "lm-block-local": {**_LM_WITH_PADS, "attention": _block(10, "local")},
    "lm-block-adaptive": {**_LM, "attention": _block({"min": 2, "max": 40, "alpha": 0.29}, "first_and_diagonal")},
    "lm-block-list": {**_LM, "attention": _block(12, "list", blocks=[[0, 1], [1, 0], [2, 2], [3, 1], [3, 3]])},
    "lm-block-layers": {
        **_LM,
        "attention": [_block(10, "diagonal"), _block(6, "strided", stride=2)],
        "tied_layers": False,
    },
    "lm-block-learned": {**_LM, "attention": _block(7, "learned", threshold=0.5)},
    "lm-ssa-local": {**_LM, "attention": _ssa("local", windows=5, sigma=0.2), "position_embedding": "alibi"},
    "lm-ssa-pads": {**_LM_WITH_PADS, "attention": _ssa("local", windows=6, sigma=0.3)},
    "lm-ssa-many-windows": {**_LM, "attention": _ssa("local", windows=40, sigma=0.05)},
    "lm-ssa-schedule": {
        **_LM,
        "attention": _ssa("local", windows=4, sigma=[0.1, 0.5], last_layers=2),
        "num_hidden_layers": 3,
    },
    "lm-ssa-none": {**_LM, "attention": _ssa("none", keep=6)},
    "lm-ssa-none-windows": {**_LM, "attention": _ssa("none", windows=7), "position_embedding": "relative"},
    "lm-ssa-grid": {**_LM, "attention": _ssa("local", windows=4, sigma=0.3, grid=[6, 8])},
}

CASES = {**_CLASSIFIERS, **_BIASES, **_BLOCKS, **_SUBSAMPLES, **_LANGUAGE}


def make_config(case: str) -> tuple:
    """(config.json as a dict, whether the block matrix is given, the names of the inputs or None: the usual ones)."""
    config = {**_BASE, **CASES[case], "description": f"random weights for tests: {case}"}
    block_matrix, inputs = config.pop("block_matrix", False), config.pop("inputs", None)
    return {key: value for key, value in config.items() if value is not None}, block_matrix, inputs

"""config.json, docs/model-format.md: which fields a model has, of which type and range, and which go together."""

from .attention_checks import check_attention
from .errors import ConvertError, mismatch, quoted

_COUNTS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_CHOICES = {
    "task": ("sequence-classification", "pair-classification", "token-classification", "regression", "causal-lm"),
    "hidden_act": ("gelu", "relu"),
    "norm_position": ("pre", "post"),
    "position_embedding": ("learned", "sinusoidal", "alibi", "relative", "none"),
    "problem_type": ("single_label_classification", "multi_label_classification"),
}
# Names of Hugging Face for approximations of GELU, by a tanh or a sigmoid.
_APPROXIMATE_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate", "quick_gelu")
_FLAGS = ("tied_layers", "causal", "tie_word_embeddings")
_OTHER_FIELDS = (
    "vocab_size",
    "feature_size",
    "num_labels",
    "description",
    "head_dim",
    "layer_norm_eps",
    "pairwise_bias",
    "pad_token_id",
    "cls_token_id",
    "pooling",
    "id2label",
    "classifier_hidden_size",
    "tokenizer",
    "attention",
    "budget_shares",
    "profiles",
    "limits",
    "shadow",
)
_MAX_LAYERS_AND_HEADS = 4096  # 12 bits each in the random-number counter
_MAX_BUCKETS = 256  # a bucket is one byte


def check_config(config: object, where: str) -> None:
    """Raises ConvertError for an unknown field, a missing one, or one of the wrong type or range."""
    if not isinstance(config, dict):
        raise ConvertError(f"{where}: not a JSON object")
    for name in config:
        if name not in _COUNTS + _FLAGS + _OTHER_FIELDS and name not in _CHOICES:
            raise ConvertError(f"{where}: unknown field {quoted(name)}")
    for name in _COUNTS:
        require_count(config, name, where)
    if "task" not in config:
        raise mismatch(f"{where}: task", "nothing", "one of " + ", ".join(_CHOICES["task"]))
    refuse_approximate_gelu(config.get("hidden_act"), f"{where}: hidden_act")
    for name, choices in _CHOICES.items():
        if name in config and config[name] not in choices:
            raise mismatch(f"{where}: {name}", quoted(config[name]), "one of " + ", ".join(choices))
    for name in _FLAGS:
        if type(config.get(name, False)) is not bool:
            raise mismatch(f"{where}: {name}", quoted(config[name]), "true or false")
    for name in ("num_hidden_layers", "num_attention_heads"):
        if config[name] > _MAX_LAYERS_AND_HEADS:
            raise mismatch(f"{where}: {name}", config[name], f"at most {_MAX_LAYERS_AND_HEADS}")
    if "head_dim" in config:
        require_count(config, "head_dim", where)
    elif config["hidden_size"] % config["num_attention_heads"]:
        raise ConvertError(
            f"{where}: head_dim is not given and hidden_size {config['hidden_size']} is not a multiple of "
            f"num_attention_heads {config['num_attention_heads']}"
        )
    _check_input(config, where)
    _check_task(config, where)
    _check_pooling(config, where)
    _check_pairwise_bias(config, where)
    check_attention(config, where)


def refuse_approximate_gelu(activation: object, where: str) -> None:
    """Raises ConvertError for an activation that is nearly `gelu`: its weights answer otherwise with ours."""
    if activation in _APPROXIMATE_GELUS:
        raise mismatch(where, quoted(activation), "gelu, the exact one, or relu: no approximation of GELU is served")


def require_count(table: dict, name: str, where: str) -> None:
    value = table.get(name, "nothing")
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise mismatch(f"{where}: {name}", quoted(value), "an integer from 1 to 2147483647")


def _check_input(config: dict, where: str) -> None:
    """Tokens of a vocabulary, or rows of features."""
    if "feature_size" not in config:
        require_count(config, "vocab_size", where)
        pad = config.get("pad_token_id", 0)
        if type(pad) is not int or not -1 <= pad < config["vocab_size"]:
            limit = f"-1 (none), or an id below vocab_size {config['vocab_size']}"
            raise mismatch(f"{where}: pad_token_id", quoted(pad), limit)
        return
    require_count(config, "feature_size", where)
    if "vocab_size" in config:
        raise ConvertError(f"{where}: vocab_size is given beside feature_size: a model has one of them")
    if config["task"] == "causal-lm":
        raise ConvertError(f"{where}: feature_size is given, but causal-lm models take tokens")
    for name in ("pad_token_id", "cls_token_id"):
        if config.get(name, -1) != -1:
            raise ConvertError(f"{where}: {name} is given, but a model with feature_size has no tokens")
    tokenizer = config.get("tokenizer", {"kind": "none"})
    if not isinstance(tokenizer, dict) or tokenizer.get("kind") != "none":
        raise mismatch(f"{where}: tokenizer", quoted(tokenizer), 'none or {"kind": "none"}, as there is a feature_size')


def _check_task(config: dict, where: str) -> None:
    language = config["task"] == "causal-lm"
    if config.get("causal", language) is not language:
        expected = f"{str(language).lower()}, as task is {config['task']}"
        raise mismatch(f"{where}: causal", str(config["causal"]).lower(), expected)
    if "tie_word_embeddings" in config and not language:
        raise ConvertError(f"{where}: tie_word_embeddings is given, but only causal-lm has it")
    if "problem_type" in config and config["task"] not in ("sequence-classification", "pair-classification"):
        raise ConvertError(f"{where}: problem_type is given, but {config['task']} is of one kind")
    if not language:
        require_count(config, "num_labels", where)
        if config.get("classifier_hidden_size", 0) != 0:
            require_count(config, "classifier_hidden_size", where)
        return
    for name in ("num_labels", "id2label", "classifier_hidden_size"):
        if name in config:
            raise ConvertError(f"{where}: {name} is given, but causal-lm has no classifier")


def _check_pooling(config: dict, where: str) -> None:
    pooling = config.get("pooling")
    if config["task"] in ("token-classification", "causal-lm"):
        if pooling is not None:
            raise ConvertError(f"{where}: pooling is given, but {config['task']} has none")
        return
    if not isinstance(pooling, dict) or pooling.get("kind") not in ("mean", "cls"):
        raise mismatch(f"{where}: pooling", quoted(pooling), "an object of kind mean or cls")
    if pooling["kind"] == "mean" and pooling.get("divisor") not in ("valid", "max_length"):
        raise mismatch(f"{where}: pooling.divisor", quoted(pooling.get("divisor")), "valid or max_length")
    if pooling["kind"] == "cls":
        if "feature_size" in config:
            raise mismatch(f"{where}: pooling.kind", "cls", "mean, as there is a feature_size")
        if type(config.get("cls_token_id")) is not int:
            found = quoted(config.get("cls_token_id"))
            raise mismatch(f"{where}: cls_token_id", found, "an integer, as pooling is cls")


def _check_pairwise_bias(config: dict, where: str) -> None:
    if "pairwise_bias" not in config:
        return
    bias, where = config["pairwise_bias"], f"{where}: pairwise_bias"
    kind = bias.get("kind") if isinstance(bias, dict) else None
    if kind not in ("values", "buckets"):
        raise mismatch(f"{where}.kind", quoted(kind), "values or buckets")
    unknown = set(bias) - ({"kind"} if kind == "values" else {"kind", "num_buckets"})
    if unknown:
        raise ConvertError(f"{where}: unknown field {quoted(min(unknown))} of kind {kind}")
    if kind == "buckets":
        require_count(bias, "num_buckets", where)
        if bias["num_buckets"] > _MAX_BUCKETS:
            raise mismatch(f"{where}.num_buckets", bias["num_buckets"], f"at most {_MAX_BUCKETS}")

#!/usr/bin/env python3
"""Writes small folders with the save() of sentence-transformers, and what its encode and predict give in float64.

    pip install torch sentence-transformers
    tests/reference/make_sentence_folders.py tests/testdata_sentence

Each folder is <case>/1/, with random weights, and <case>/golden.json has `texts` with their `embedding`, or their
`scores`, and with the `prompt_name` that encode was given; `limits`: the same under other limits of the files.
A release before 5.4 writes other files: it writes the cases whose names begin with `old_`, and this one the others.
"""

import json
import pathlib
import tempfile

import fixture_folders
import hugging_face_tokenizers
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, __version__, models

OLD = tuple(map(int, __version__.split(".")[:2])) < (5, 4)
VOCABULARY = 40
BERT = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 40}
QWEN3 = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 40,
         "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
PROMPTS = {"query": "is the good dog ", "document": "", "title": "a cat"}
TEXTS = ["the cat sat on the mat.", "", "The good DOG, not a bad cat!", hugging_face_tokenizers.LONG]
if OLD:  # it takes blanks off the ends of a prompt and its text, which later releases and Edgewise do not
    TEXTS.remove("")
PAIRS = [("is the dog good", "the dog is old!"), ("the cat", ""), ("a cat", hugging_face_tokenizers.LONG)]
# max_seq_length, model_max_length and max_position_embeddings: each of them the smallest and the largest.
LIMITS = [(10, 20, 38), (10, 38, 20), (20, 10, 38), (20, 38, 10), (38, 10, 20), (38, 20, 10),
          (None, 10, 20), (None, 20, 10), (None, None, 10)]


def bert(kind="BertModel", **more):
    return kind, {**BERT, **more}, "bert"


def decoder():
    return "Qwen3ForCausalLM", QWEN3, "gpt2"


def pooling(mode, **more):
    return lambda: models.Pooling(16, pooling_mode=mode, **more)


def dense(before, after, activation, bias=True):
    return lambda: models.Dense(before, after, bias=bias, activation_function=activation)


def save_encoder(folder, base, modules, transformer=None, **options):
    first = models.Transformer(base, **(transformer or {}))
    SentenceTransformer(modules=[first] + [make() for make in modules], device="cpu", **options).save(
        str(folder), create_model_card=False)


def save_cross_encoder(folder, base, **options):
    encoder = CrossEncoder(base, device="cpu", **options)
    encoder.save_pretrained(str(folder), **({} if OLD else {"create_model_card": False}))
    (folder / "README.md").unlink(missing_ok=True)


# Name: the model, the modules behind it and how it is saved; of cross-encoders how alone.
TANH, NONE = torch.nn.Tanh(), torch.nn.Identity()
ENCODERS = {
    "mean": (bert(), [pooling("mean")], {"transformer": {"max_seq_length": 12}}),
    "cls_prompts": (bert(), [pooling("cls"), models.Normalize], {"prompts": PROMPTS, "default_prompt_name": "title"}),
    "excluded_prompts": (bert(), [pooling("mean", include_prompt=False)], {"prompts": PROMPTS}),
    "truncate_dim": (bert(), [pooling("mean")], {"truncate_dim": 6}),
    "dense": (bert(), [pooling("mean"), dense(16, 24, TANH), dense(24, 6, NONE, bias=False), models.Normalize], {}),
    "last_token": (decoder(), [pooling("lasttoken"), models.Normalize],
                   {"prompts": {"query": "the cat is on "}, "default_prompt_name": None}),
}
OLD_ENCODERS = {
    "old_mean": (bert(), [pooling("mean")], {"transformer": {"max_seq_length": 12, "do_lower_case": True}}),
    "old_dense": (bert(), [pooling("cls"), dense(16, 6, TANH), models.Normalize], {"prompts": PROMPTS}),
    "old_last_token": (decoder(), [pooling("lasttoken")],
                       {"transformer": {"do_lower_case": True}, "prompts": PROMPTS, "default_prompt_name": "query"}),
}
SCORER = "BertForSequenceClassification"
CROSS_ENCODERS = {
    "cross_encoder": (bert(SCORER, num_labels=1), {"max_length": 24}),
    "cross_encoder_logits": (bert(SCORER, num_labels=1), {"activation_fn": NONE}),
    "cross_encoder_labels": (bert(SCORER, num_labels=3), {}),
    "cross_encoder_sigmoids": (bert(SCORER, num_labels=3), {"activation_fn": torch.nn.Sigmoid()}),
}
OLD_CROSS_ENCODERS = {"old_cross_encoder": (bert(SCORER, num_labels=1), {})}
CASES = {**OLD_ENCODERS, **OLD_CROSS_ENCODERS} if OLD else {**ENCODERS, **CROSS_ENCODERS}


def make_tokenizer(kind):
    """That of decoders puts a token behind the text, as that of Qwen3-Embedding does."""
    if kind != "gpt2":
        return hugging_face_tokenizers.make(kind)
    tokenizer, end = hugging_face_tokenizers.make_gpt2(False), "<|im_end|>"
    tokenizer.backend_tokenizer.post_processor = hugging_face_tokenizers.processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, 2)])
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer


def encoded(folder, texts, prompt_names):
    encoder = SentenceTransformer(str(folder), device="cpu").double()
    return [{"text": text, **({} if name is None else {"prompt_name": name}),
             "embedding": encoder.encode([text], prompt_name=name, convert_to_numpy=True)[0].tolist()}
            for name in prompt_names for text in texts]


def edited(path, **fields):
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, **{name: field for name, field in fields.items() if field is not None}}))


def limits(folder):
    """The result of encode for one text under other limits of the files."""
    entries = []
    for sequence, tokenizer, positions in LIMITS:
        with tempfile.TemporaryDirectory() as temporary:
            copy = pathlib.Path(temporary) / "1"
            fixture_folders.shutil.copytree(folder, copy)
            edited(copy / "sentence_bert_config.json", max_seq_length=sequence)
            edited(copy / "tokenizer_config.json", model_max_length=tokenizer)
            edited(copy / "config.json", max_position_embeddings=positions)
            # Positions are angles: where the text may be longer than there are positions, the library takes it all.
            text = hugging_face_tokenizers.LONG[:60]
            entries.append({"max_seq_length": sequence, "model_max_length": tokenizer,
                            "max_position_embeddings": positions, **encoded(copy, [text], [None])[0]})
    return entries


def compact(folder):
    """The large files in one line."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n")


def save(folder, case, seed):
    """Saves a case as the library does, with scores where the class of the model has a head."""
    (kind, sizes, tokenizer_kind), *how = case
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as base:
        model = fixture_folders.new_model(kind, sizes, "float32", seed)
        if kind.endswith(("ForCausalLM", "LMHeadModel")):  # without the output layer, as encoders are saved
            model = model.base_model
        model.save_pretrained(base)
        make_tokenizer(tokenizer_kind).save_pretrained(base)
        if len(how) == 1:
            save_cross_encoder(folder, base, **how[0])
        else:
            save_encoder(folder, base, how[0], **how[1])
    compact(folder)


def texts(folder, case):
    """The answers of the library, in float64."""
    if len(case) == 3:
        return encoded(folder, TEXTS, [None, *case[2].get("prompts", {})])
    encoder = CrossEncoder(str(folder), device="cpu")
    encoder.model.double()
    return [{"text": text, "second": second,
             "scores": torch.as_tensor(encoder.predict([(text, second)])[0]).reshape(-1).tolist()}
            for text, second in PAIRS]


def write_case(root, name, seed):
    folder = fixture_folders.empty_folder(root, name)
    save(folder, CASES[name], seed + 100 * OLD)
    golden = {"texts": texts(folder, CASES[name])}
    if name == "last_token":
        golden["limits"] = limits(folder)
    fixture_folders.write_golden(root, name, golden)


if __name__ == "__main__":
    fixture_folders.main(__doc__, CASES, write_case)

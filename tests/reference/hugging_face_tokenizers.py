"""Small tokenizers for the folders of make_hugging_face.py, and the texts that their goldens have."""

import json

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

MASK = 5  # the id of the mask token
WORDS = ("the cat dog sat on mat a is good bad not ##s ##ing ##ed run sleep old tree and in house red blue h ##h e ##e "
         ", ! ? 你 好 ##un na").split()
MERGES = [("t", "h"), ("th", "e"), ("a", "t"), ("\u0120", "a"), ("i", "n"), ("o", "n"), ("e", "r")]


def specials(model_type):
    """Token by role, and the vocabulary's first six entries."""
    if model_type in ("bert", "distilbert", "modernbert"):
        roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
                 "mask_token": "[MASK]"}
        return roles, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", "[MASK]"]
    unknown = "[UNK]" if model_type == "mpnet" else "<unk>"
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": unknown, "cls_token": "<s>",
             "sep_token": "</s>", "mask_token": "<mask>"}
    return roles, ["<s>", "<pad>", "</s>", unknown, ".", "<mask>"]


def word_piece(first, unknown):
    vocab = {token: id for id, token in enumerate(first + WORDS)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def byte_pairs(first, unknown):
    letters = ["\u0120"] + [chr(ord("a") + i) for i in range(26)]
    vocab = {token: id for id, token in enumerate(first + letters + ["".join(pair) for pair in MERGES])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, MERGES, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def make_gpt2(begins):
    """Byte pairs, of which some begin a character of two bytes. `begins`: the template puts a token in front."""
    first = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "\u00c3", "\u00a9", "."]
    letters = ["\u0120", "\u010a"] + [chr(ord("a") + i) for i in range(26)]
    merges = MERGES[:6]
    vocab = {token: id for id, token in enumerate(first + letters + ["".join(pair) for pair in merges])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", 1)])
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in first[:3]])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=first[1 if begins else 0], eos_token=first[2],
        model_input_names=["input_ids", "attention_mask"])


def make_modernbert():
    """Byte pairs as OLMo's, with a token for two spaces, and BERT's template."""
    roles, first = specials("modernbert")
    letters = ["\u0120"] + [chr(ord("a") + i) for i in range(26)]
    merges = MERGES[:6]
    vocab = {token: id for id, token in enumerate(first + letters + ["".join(pair) for pair in merges])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    mask = tokenizers.AddedToken(roles.pop("mask_token"), lstrip=True, special=True, normalized=False)
    tokenizer.add_tokens([tokenizers.AddedToken("  ", normalized=True)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token=mask,
                                                model_input_names=["input_ids", "attention_mask"], **roles)


def make(model_type):
    if model_type == "modernbert":
        return make_modernbert()
    roles, first = specials(model_type)
    if model_type == "roberta":
        tokenizer = byte_pairs(first, roles["unk_token"])
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    else:
        tokenizer = word_piece(first, roles["unk_token"])
        cls, sep = roles["cls_token"], roles["sep_token"]
        pair = f"{cls} $A {sep} $B:1 {sep}:1" if cls == "[CLS]" else f"{cls} $A {sep} {sep} $B {sep}"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=pair, special_tokens=[(cls, first.index(cls)), (sep, first.index(sep))])
    mask = roles.pop("mask_token")
    added = tokenizers.AddedToken(mask, lstrip=mask == "<mask>", special=True, normalized=False)
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if model_type != "bert":  # as the classes of transformers have it
        inputs.remove("token_type_ids")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token=added, model_input_names=inputs,
                                                **roles)


def write(folder, model_type, kind):
    """kind: "tokenizer", or "vocab": vocab.txt alone; of gpt2 also "bos". Returns the tokenizer."""
    if kind == "vocab":
        (folder / "vocab.txt").write_text("\n".join(specials(model_type)[1] + WORDS) + "\n")
        return make(model_type)
    made = make_gpt2(kind == "bos") if model_type == "gpt2" else make(model_type)
    made.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n")
    return made


LONG = "the good old dog and a cat, sleeping in the red house! " * 4


def texts(mask, masked, pairs, spaces=False):
    """(text, second, truncate) of a folder's goldens. `mask`: its mask token. `spaces`: with several in a row."""
    shown = [f"The {mask} sat on the mat.", f"{mask} is not {mask}?"] if masked else ["The cats sat on the mat.", "", "你好, naïve x!"]
    cases = [(text, None, "REFUSE") for text in shown]
    cases += [(f"{mask} {LONG}" if masked else LONG, None, "TAIL"), (f"{LONG} {mask}" if masked else LONG, None, "HEAD")]
    if spaces:
        cases.append((f"the  cats   sat{mask * masked}\n  on cafe\u0301", None, "REFUSE"))
    if pairs:
        cases += [("is the dog good", "the dog is old!", "REFUSE"), ("a cat", LONG, "TAIL"), (LONG, LONG, "HEAD")]
    return cases


def encode(tokenizer, text, second, truncate, most):
    """The fields of the golden about the tokens of an input. `most`: tokens of a text."""
    whole = tokenizer(text, second)
    if truncate == "REFUSE":
        cut = whole
    else:
        tokenizer.truncation_side = "left" if truncate == "HEAD" else "right"
        cut = tokenizer(text, second, truncation=True, max_length=most, return_offsets_mapping=True)
        assert len(cut["input_ids"]) == most < len(whole["input_ids"]), (text, second)
    entry = {"text": text, "truncate": truncate, "token_ids": cut["input_ids"],
             "truncated": len(whole["input_ids"]) - len(cut["input_ids"])}
    if second is not None:
        entry["second"] = second
    if any(cut.get("token_type_ids", [])):
        entry["token_types"] = cut["token_type_ids"]
    offsets = cut.encodings[0].offsets
    if second is None:
        entry["offsets"] = [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in offsets]
    return entry
